"""Correlate the cosine of two texts' embeddings with human scores (STS-B, SICK).

No training is needed.
"""

import jax
import numpy as np

from t5x_like.errors import UserError
from t5x_like.evals import EvalContext, EvalResult, _embeddings, _labelled
from t5x_like.metrics.classification import Correlation
from t5x_like.rows import pad_rows, run_in_batches
from t5x_like.slots import PositiveInt


class Evaluator:
  """An evaluator of an encoder's sentence embeddings, with or without a head.

  Each text is a row of its own: CLS, its tokens, SEP. Pairs without a number are left out.

  Args:
    pooling: the mean of the last hidden states, or the first token's state.
    ids: fields to copy to the predictions.
    max_examples: the number of pairs, from the first; None means all.

  Raises:
    UserError: the model is no encoder, or the task has no pairs of texts with a number.
  """

  def __init__(
    self,
    context: EvalContext,
    *,
    pooling: _embeddings.Pooling = "mean",
    ids: tuple[str, ...] = (),
    max_examples: PositiveInt | None = None,
  ):
    _embeddings.check_text_encoder(context.model, "evaluator embedding")
    task = context.task
    if task.examples is None or task.classes:
      raise UserError(
        f"evaluator embedding: task {task.name} has no numbers to compare with, expected task "
        "classification with text, pair and no labels"
      )
    labelled = [example for example in task.examples(ids) if example["label"] is not None]
    examples = labelled[:max_examples]
    if not examples or len(examples[0]["text"]) != 2:
      raise UserError(
        f"evaluator embedding: task {task.name} has single texts; set --config.task.pair"
      )
    self._examples = examples
    self._ids = ids
    self._context = context
    longest = task.features["encoder_input_tokens"].shape[-1]
    self._rows = []  # of a pair, the first text and then the second
    for example in examples:
      for text in example["text"]:
        self._rows.append(_embeddings.encode_text(task.vocabulary, text, longest))
    lengths = [len(row) for row in self._rows]
    self._lengths = _labelled.padded_lengths(context.model, lengths, longest)
    self._run = context.jit(lambda model, batch: (_embeddings.pool(model, batch, pooling),))

  def metric_names(self) -> tuple[str, ...]:
    return (*Correlation.names, "examples")

  def __call__(self, arrays: dict[str, jax.Array]) -> EvalResult:
    """Return the correlations, in percent, and the number of `examples`."""
    rows = run_in_batches(
      lambda batch: self._run(arrays, batch),
      self._context.rules,
      self._context.batch_size,
      self._lengths,
      self._features,
    )
    first_ND = np.stack([embedding_D for (embedding_D,) in rows[0::2]])
    second_ND = np.stack([embedding_D for (embedding_D,) in rows[1::2]])
    cosine_N = np.sum(first_ND * second_ND, axis=1)
    predictions = []
    for example, cosine in zip(self._examples, cosine_N, strict=True):
      row = {"input": " | ".join(example["text"]), "target": example["label"]}
      row["prediction"] = float(cosine)
      predictions.append(_labelled.with_identifiers(row, example["record"], self._ids))
    gold = [row["target"] for row in predictions]
    scores = Correlation()(gold, [row["prediction"] for row in predictions])
    scores["examples"] = len(predictions)
    return EvalResult(scores, _labelled.sample_predictions(predictions), predictions)

  def _features(self, numbers: list[int], length: int) -> dict[str, np.ndarray]:
    tokens_BP, valid_BP = pad_rows([self._rows[number] for number in numbers], length)
    return {"encoder_input_tokens": tokens_BP, "encoder_segment_ids": valid_BP}
