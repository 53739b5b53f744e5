"""Classification of images: top-1 and top-5 accuracy."""

import dataclasses

import jax

from t5x_like.errors import UserError
from t5x_like.evals import BaseEvaluator, _top_classes
from t5x_like.slots import PositiveInt


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(BaseEvaluator):
  """An evaluator that classifies the centre crop of every image once; scores are in percent.

  Attributes:
    max_examples: the number of images, from the first; None means all.

  Raises:
    UserError: the task has no images or no classes.
  """

  max_examples: PositiveInt | None = None

  def __post_init__(self):
    task = self.context.task
    if "image" not in task.features or not task.classes:
      features = ", ".join(task.features)
      raise UserError(
        f"evaluator image_classification: found task {task.name} with the features {features}, "
        "expected images with class labels; name another evaluator"
      )

  def metric_names(self):
    return _top_classes.top_metric_names(self.context.task.classes)

  def compute(self, model, batch):
    """Return the likeliest classes, int32 [B, K], the labels and the indices of the examples."""
    k = min(_top_classes.TOP_K, len(self.context.task.classes))
    _, best_BK = jax.lax.top_k(model(batch)["logits"], k)
    return best_BK, batch["label"], batch["example_index"]

  def __call__(self, arrays):
    """Return `top1`, `top5` if there are more than five classes, and the number of `images`."""
    batches = self.context.batches(self.max_examples)
    outputs = self.context.run_batches(self.run, arrays, batches)
    return _top_classes.score_top_classes(*outputs, self.context.task.classes)
