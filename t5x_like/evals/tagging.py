"""Evaluate the tags of words: accuracy and, for entities, precision, recall and F1."""

import dataclasses

import jax.numpy as jnp

from t5x_like.evals import EvalResult, _labelled
from t5x_like.metrics.tagging import EntityF1, TagAccuracy

_OUTSIDE = "O"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(_labelled.LabelledEvaluator):
  """An evaluator of the likeliest tag of every word, read at the word's first token.

  The model does not see words beyond the length of a row. They count as tagged O or, if there is no
  tag O, as wrong; `truncated_words` is their number.

  Raises:
    UserError: the model lacks the head, its head has another number of tags, or a field is unknown.
  """

  def check(self) -> None:
    _labelled.check_labelled(self.context, "tagging", {"logits": 3}, len(self._tags))

  @property
  def _tags(self):
    return self.context.task.classes

  @property
  def _metrics(self):
    if any(tag.startswith("B-") for tag in self._tags):
      return [TagAccuracy(), EntityF1()]
    return [TagAccuracy()]

  def metric_names(self):
    names: list[str] = []
    for metric in self._metrics:
      names += metric.names
    return (*names, "examples", "truncated_words")

  def compute(self, model, batch):
    """Return the likeliest tag at every token, and 1 at the first token of a word, else 0."""
    tags_BS = jnp.argmax(model(batch)["logits"], axis=-1)
    return tags_BS.astype(jnp.int32), batch["encoder_loss_weights"].astype(jnp.int32)

  def __call__(self, arrays):
    """Return `accuracy` and, for entities, `precision`, `recall` and `f1`, in percent."""
    fill_tag = _OUTSIDE if _OUTSIDE in self._tags else ""
    predictions = []
    truncated_words = 0
    for example, (tags_S, first_S) in zip(self.examples, self.rows(arrays)):
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
      prediction = _labelled.prepend_ids(row, example["record"], self.ids)
      prediction["tags"] = predicted_tags
      predictions.append(prediction)
    gold = [example["tags"] for example in self.examples]
    predicted = [prediction["tags"] for prediction in predictions]
    metrics = {"examples": len(gold), "truncated_words": truncated_words}
    for metric in self._metrics:
      metrics |= metric(gold, predicted)
    return EvalResult(metrics, _labelled.sample_predictions(predictions), predictions)
