"""Classification of images: top-1 and top-5 accuracy."""

from collections.abc import Sequence

import jax
import numpy as np

from t5x_like.errors import UserError
from t5x_like.evals import Result, Setting
from t5x_like.parallel.rules import fetch
from t5x_like.slots import Positive

MOST = 5  # of the likeliest classes, compared by `top5`
_SAMPLES = 8


class Evaluator:
  """An evaluator that classifies the centre crop of every image once; scores are in percent.

  Args:
    max_examples: the number of images, from the first; None means all.

  Raises:
    UserError: the task has no images or no classes.
  """

  def __init__(self, setting: Setting, *, max_examples: Positive | None = None):
    self._setting, self._most, self._classes = setting, max_examples, setting.task.classes
    if "image" not in setting.task.features or not self._classes:
      made = ", ".join(setting.task.features)
      raise UserError(f"evaluator image_classification: is for labelled images, task {setting.task.name} makes {made}")
    places = min(MOST, len(self._classes))

    def likeliest(model, batch):
      return jax.lax.top_k(model(batch)["logits"], places)[1], batch["label"], batch["example_index"]

    self._run = setting.jit(likeliest)

  def names(self) -> tuple[str, ...]:
    return names(self._classes)

  def __call__(self, arrays: dict[str, jax.Array]) -> Result:
    """Return `top1`, `top5` if there are more than five classes, and the number of `images`."""
    found = [[fetch(x) for x in self._run(arrays, batch)] for batch in self._setting.global_batches(self._most)]
    best_NK, label_N, index_N = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return scored(best_NK, label_N, index_N, self._classes)


def names(classes: Sequence[str]) -> tuple[str, ...]:
  """Return the names of the metrics of `scored`."""
  return ("top1", *(("top5",) if len(classes) > MOST else ()), "images")


def scored(best_NK: np.ndarray, label_N: np.ndarray, index_N: np.ndarray, classes: Sequence[str]) -> Result:
  """Score the likeliest classes of images, the best first; an image with index -1 is padding."""
  best_NK, label_N, index_N = (x[index_N >= 0] for x in (best_NK, label_N, index_N))
  right_NK = best_NK == label_N[:, None]
  scores = {"top1": 100 * float(right_NK[:, 0].mean())}
  if len(classes) > MOST:
    scores["top5"] = 100 * float(right_NK.any(axis=1).mean())

  def name(number: int) -> str:
    return classes[number] if number < len(classes) else f"class {number}"

  named = [
    {"input": f"image {index}", "target": name(label), "prediction": name(best)}
    for index, label, best in zip(index_N, label_N, best_NK[:, 0])
  ]
  return Result(scores | {"images": len(named)}, named[:_SAMPLES], named)
