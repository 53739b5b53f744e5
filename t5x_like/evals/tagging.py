"""Evaluate the tags of words: accuracy and, for entities, precision, recall and F1."""

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.evals import EvalContext, EvalResult, _labelled
from t5x_like.metrics.tagging import EntityF1, TagAccuracy
from t5x_like.slots import PositiveInt

_OUTSIDE = "O"


class Evaluator:
  """Compare the likeliest tag of every word, read at the word's first token, with its label.

  The model does not see words beyond the length of a row. They count as tagged O or, if there is no
  tag O, as wrong; `truncated_words` is their number.

  Args:
    ids: fields of the records to copy to the predictions.
    max_examples: evaluate only this many sentences, from the start; None means all.

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
    names: list[str] = []
    for metric in self._metrics:
      names += metric.names
    return (*names, "examples", "truncated_words")

  def __call__(self, arrays: dict[str, jax.Array]) -> EvalResult:
    """Compute `accuracy` and, for tags such as B-PER, `precision`, `recall` and `f1` of entities.

    All are in percent.
    """
    fill_tag = _OUTSIDE if _OUTSIDE in self._tags else ""
    predictions = []
    truncated_words = 0
    for example, (tags_S, first_S) in zip(self._examples, self._rows(arrays)):
      predicted_tags = [self._tags[tag] for tag in tags_S[first_S > 0]]
      num_missing = len(example["tags"]) - len(predicted_tags)
      predicted_tags += [fill_tag] * num_missing
      truncated_words += num_missing
      row = {
        "input": " ".join(example["tokens"]),
        "tokens": example["tokens"],
        "target": " ".join(example["tags"]),
        "prediction": " ".join(predicted_tags),
      }
      prediction = _labelled.with_identifiers(row, example["record"], self._ids)
      prediction["tags"] = predicted_tags
      predictions.append(prediction)
    gold = [example["tags"] for example in self._examples]
    predicted = [prediction["tags"] for prediction in predictions]
    metrics = {"examples": len(gold), "truncated_words": truncated_words}
    for metric in self._metrics:
      metrics |= metric(gold, predicted)
    return EvalResult(metrics, _labelled.sample_predictions(predictions), predictions)


def _outputs(model, batch) -> tuple[jax.Array, jax.Array]:
  """Return the likeliest tag at every token, and 1 at the first token of a word, else 0."""
  tags_BS = jnp.argmax(model(batch)["logits"], axis=-1)
  return tags_BS.astype(jnp.int32), batch["encoder_loss_weights"].astype(np.int32)
