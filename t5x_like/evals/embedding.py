"""The cosine of two texts' embeddings against a number that people gave, without any training
(STS-B, SICK)."""

import jax
import numpy as np

from t5x_like.errors import UserError
from t5x_like.evals import EvalContext, EvalResult, _embeddings, _labelled
from t5x_like.metrics.classification import Correlation
from t5x_like.rows import run_in_batches
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
    found = [one for one in task.examples(ids) if one["label"] is not None][:max_examples]
    if not found or len(found[0]["text"]) != 2:
      raise UserError(
        f"evaluator embedding: task {task.name} has single texts; set --config.task.pair"
      )
    self._examples = found
    self._ids = ids
    self._context = context
    longest = task.features["encoder_input_tokens"].shape[-1]
    self._rows = [
      _embeddings.encode_text(task.vocabulary, text, longest)
      for one in found
      for text in one["text"]
    ]
    self._lengths = _labelled.padded_lengths(
      context.model, [len(row) for row in self._rows], longest
    )
    self._run = context.jit(lambda model, batch: (_embeddings.pool(model, batch, pooling),))

  def metric_names(self) -> tuple[str, ...]:
    return (*Correlation.names, "examples")

  def __call__(self, arrays: dict[str, jax.Array]) -> EvalResult:
    """Return the correlations, in percent, and the number of `examples`."""

    def features(chosen: list[int], length: int) -> dict[str, np.ndarray]:
      tokens, valid = np.zeros((2, len(chosen), length), np.int32)
      for at, number in enumerate(chosen):
        tokens[at, : len(self._rows[number])], valid[at, : len(self._rows[number])] = (
          self._rows[number],
          1,
        )
      return {"encoder_input_tokens": tokens, "encoder_segment_ids": valid}

    context = self._context
    run = lambda batch: self._run(arrays, batch)  # noqa: E731
    rows = run_in_batches(run, context.rules, context.batch_size, self._lengths, features)
    first_ND, second_ND = (np.stack([x for (x,) in rows[side::2]]) for side in (0, 1))
    predictions = [
      _labelled.with_identifiers(
        {"input": " | ".join(one["text"]), "target": one["label"], "prediction": float(cosine)},
        one["record"],
        self._ids,
      )
      for one, cosine in zip(self._examples, np.sum(first_ND * second_ND, axis=1), strict=True)
    ]
    scores = Correlation()(
      [one["target"] for one in predictions], [one["prediction"] for one in predictions]
    )
    return EvalResult(
      scores | {"examples": len(predictions)},
      _labelled.sample_predictions(predictions),
      predictions,
    )
