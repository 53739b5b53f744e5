"""Classification of images: top-1 and top-5 accuracy."""

import jax
import numpy as np

from t5x_like.errors import UserError
from t5x_like.evals import EvalContext, EvalResult, _top_classes
from t5x_like.parallel.rules import fetch
from t5x_like.slots import PositiveInt


class Evaluator:
  """An evaluator that classifies the centre crop of every image once; scores are in percent.

  Args:
    max_examples: the number of images, from the first; None means all.

  Raises:
    UserError: the task has no images or no classes.
  """

  def __init__(self, context: EvalContext, *, max_examples: PositiveInt | None = None):
    self._context = context
    self._most = max_examples
    self._classes = context.task.classes
    if "image" not in context.task.features or not self._classes:
      features = ", ".join(context.task.features)
      raise UserError(
        "evaluator image_classification: is for labelled images, task "
        f"{context.task.name} makes {features}"
      )
    k = min(_top_classes.TOP_K, len(self._classes))

    def likeliest(model, batch):
      return (
        jax.lax.top_k(model(batch)["logits"], k)[1],
        batch["label"],
        batch["example_index"],
      )

    self._run = context.jit(likeliest)

  def metric_names(self) -> tuple[str, ...]:
    return _top_classes.top_metric_names(self._classes)

  def __call__(self, arrays: dict[str, jax.Array]) -> EvalResult:
    """Return `top1`, `top5` if there are more than five classes, and the number of `images`."""
    outputs = [
      [fetch(x) for x in self._run(arrays, batch)]
      for batch in self._context.global_batches(self._most)
    ]
    best_NK, label_N, index_N = (np.concatenate(parts) for parts in zip(*outputs, strict=True))
    return _top_classes.score_top_classes(best_NK, label_N, index_N, self._classes)
