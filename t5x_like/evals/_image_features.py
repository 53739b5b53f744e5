"""Features of labelled images by a frozen model, shared by evaluators that learn from one split and score another."""

from collections.abc import Iterator

import jax
import numpy as np

from t5x_like.corpora.sources import parted
from t5x_like.errors import UserError
from t5x_like.evals import Setting
from t5x_like.parallel.rules import fetch


class Features:
  """The inputs of the model's head on two splits of a task.

  Args:
    setting: the split to score.
    support_split: the split to learn from.
    where: the evaluator, for messages.

  Attributes:
    support: the setting of the other split.

  Raises:
    UserError: the model is not for labelled images, or the two splits share images.
  """

  def __init__(self, setting: Setting, support_split: str, where: str):
    if not hasattr(setting.model, "features") or setting.task.labels is None or setting.on is None:
      raise UserError(f"evaluator {where}: is for models and tasks of labelled images, not task {setting.task.name}")
    self.support = setting.on(support_split)
    if self.support is setting or parted(setting.split or "")[0] == parted(support_split)[0]:  # firsts of one split
      raise UserError(
        f"evaluator {where}: found the split {setting.split!r} and the support_split {support_split!r}, so images that"
        " it learns from would be scored; set either to another split"
      )
    self._run = setting.jit(lambda model, batch: (model.features(batch), batch["label"], batch["example_index"]))

  def __call__(
    self, arrays: dict[str, jax.Array], setting: Setting, batches: Iterator[dict[str, np.ndarray]]
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (features float32 [N, D], labels int32 [N], indices of the examples int [N])."""
    found = [[fetch(x) for x in self._run(arrays, batch)] for batch in setting.placed(batches)]
    features_ND, label_N, index_N = (np.concatenate(parts) for parts in zip(*found, strict=True))
    real_N = index_N >= 0
    return features_ND[real_N], label_N[real_N], index_N[real_N]
