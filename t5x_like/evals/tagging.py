"""Tags of words: accuracy and, for entities, precision, recall and F1."""

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.evals import EvalContext, EvalResult, _labelled
from t5x_like.metrics.tagging import EntityF1, TagAccuracy
from t5x_like.slots import PositiveInt

_OUTSIDE = "O"


class Evaluator:
  """An evaluator of every word's likeliest tag, predicted at its first token.

  Words beyond the length of a row, which the model does not see, count as tagged O or, without such
  a tag, as wrong; `truncated_words` is their number.

  Args:
    ids: fields to copy to the predictions.
    max_examples: the number of sentences, from the first; None means all.

  Raises:
    UserError: the model lacks the head, its head has another number of tags, or a field is unknown.
  """

  def __init__(
    self,
    context: EvalContext,
    *,
    ids: tuple[str, ...] = (),
    max_examples: PositiveInt | None = None,
  ):
    self._tags = context.task.classes
    self._ids = ids
    _labelled.check_labelled(context, "tagging", {"logits": 3}, len(self._tags))
    self._metrics = [TagAccuracy()]
    if any(tag.startswith("B-") for tag in self._tags):
      self._metrics.append(EntityF1())
    self._rows = _labelled.LabelledRows(context, _outputs, max_examples)
    self._examples = context.task.examples(ids)[: len(self._rows.tokens)]

  def metric_names(self) -> tuple[str, ...]:
    return (
      *(name for metric in self._metrics for name in metric.names),
      "examples",
      "truncated_words",
    )

  def __call__(self, arrays: dict[str, jax.Array]) -> EvalResult:
    """Return `accuracy` and, for tags such as B-PER, `precision`, `recall` and `f1` of entities, in
    percent."""
    predictions = []
    truncated = 0
    for example, (tags_S, first_S) in zip(self._examples, self._rows(arrays)):
      predicted = [self._tags[tag] for tag in tags_S[first_S > 0]]
      missing = len(example["tags"]) - len(predicted)
      truncated += missing
      tags = predicted + [_OUTSIDE if _OUTSIDE in self._tags else ""] * missing
      row = {
        "input": " ".join(example["tokens"]),
        "tokens": example["tokens"],
        "target": " ".join(example["tags"]),
      }
      predictions.append(
        _labelled.with_identifiers(
          row | {"prediction": " ".join(tags)}, example["record"], self._ids
        )
      )
      predictions[-1]["tags"] = tags
    gold = [example["tags"] for example in self._examples]
    metrics = {"examples": len(gold), "truncated_words": truncated}
    for metric in self._metrics:
      metrics |= metric(gold, [row["tags"] for row in predictions])
    return EvalResult(metrics, _labelled.sample_predictions(predictions), predictions)


def _outputs(model, batch) -> tuple[jax.Array, jax.Array]:
  tags_BS = jnp.argmax(model(batch)["logits"], axis=-1)
  return tags_BS.astype(jnp.int32), batch["encoder_loss_weights"].astype(np.int32)
