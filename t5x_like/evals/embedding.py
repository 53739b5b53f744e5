"""Correlate the cosine of two texts' embeddings with human scores (STS-B, SICK), untrained."""

import dataclasses
import functools

import numpy as np

from t5x_like.errors import UserError
from t5x_like.evals import BaseEvaluator, EvalResult, _embeddings, _labelled
from t5x_like.metrics.classification import Correlation
from t5x_like.rows import pad_rows, run_in_batches
from t5x_like.slots import PositiveInt


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(BaseEvaluator):
  """An evaluator of an encoder's sentence embeddings, with or without a head.

  Each text is a separate row: CLS, its tokens, SEP. Pairs without a number are left out.

  Attributes:
    pooling: the mean of the last hidden states, or the first token's state.
    ids: fields to copy to the predictions.
    max_examples: the number of pairs, from the first; None means all.

  Raises:
    UserError: the model is no encoder, or the task has no pairs of texts with a number.
  """

  pooling: _embeddings.Pooling = "mean"
  ids: tuple[str, ...] = ()
  max_examples: PositiveInt | None = None

  def __post_init__(self):
    _embeddings.check_text_encoder(self.context.model, "evaluator embedding")
    task = self.context.task
    if task.examples is None or task.classes:
      raise UserError(
        f"evaluator embedding: found task {task.name} without numbers to compare with, expected "
        "task classification with text, pair and no labels"
      )
    if not self._examples or len(self._examples[0]["text"]) != 2:
      raise UserError(
        f"evaluator embedding: found single texts in task {task.name}, expected pairs; set "
        "--config.task.pair"
      )

  @functools.cached_property
  def _examples(self):
    """The pairs that have a number."""
    examples = self.context.task.examples(self.ids)
    labelled = [example for example in examples if example["label"] is not None]
    return labelled[: self.max_examples]

  @functools.cached_property
  def _rows(self):
    """The ids of each pair's first text and then its second."""
    task = self.context.task
    longest = task.features["encoder_input_tokens"].shape[-1]
    texts = [text for example in self._examples for text in example["text"]]
    return [_embeddings.encode_text(task.vocabulary, text, longest) for text in texts]

  def compute(self, model, batch):
    """Return the embeddings of texts, float32 [B, D]."""
    return (_embeddings.pool(model, batch, self.pooling),)

  def metric_names(self):
    return (*Correlation.names, "examples")

  def __call__(self, arrays):
    """Return the correlations, in percent, and the number of `examples`."""
    context = self.context
    longest = context.task.features["encoder_input_tokens"].shape[-1]
    lengths = _labelled.padded_lengths(context.model, [len(row) for row in self._rows], longest)
    rows = run_in_batches(
      lambda batch: self.run(arrays, batch),
      context.rules,
      context.batch_size,
      lengths,
      self._features,
    )
    first_ND = np.stack([embedding_D for (embedding_D,) in rows[0::2]])
    second_ND = np.stack([embedding_D for (embedding_D,) in rows[1::2]])
    cosine_N = np.sum(first_ND * second_ND, axis=1)
    predictions = []
    for example, cosine in zip(self._examples, cosine_N, strict=True):
      row = {"input": " | ".join(example["text"]), "target": example["label"]}
      row["prediction"] = float(cosine)
      predictions.append(_labelled.prepend_ids(row, example["record"], self.ids))
    gold = [row["target"] for row in predictions]
    scores = Correlation()(gold, [row["prediction"] for row in predictions])
    scores["examples"] = len(predictions)
    return EvalResult(scores, _labelled.sample_predictions(predictions), predictions)

  def _features(self, numbers: list[int], length: int) -> dict[str, np.ndarray]:
    """Return the model's features of texts, padded to a length."""
    tokens_BP, valid_BP = pad_rows([self._rows[number] for number in numbers], length)
    return {"encoder_input_tokens": tokens_BP, "encoder_segment_ids": valid_BP}
