"""Greedy span infilling: how often the model restores exactly the spans removed from the text."""

from collections import Counter
from collections.abc import Sequence

import jax
import numpy as np

from t5x_like.decoding.generate import greedy
from t5x_like.evals import EvalContext, EvalResult
from t5x_like.parallel.rules import fetch
from t5x_like.slots import NonNegativeInt, PositiveInt


class Evaluator:
  """An evaluator that decodes corrupted inputs greedily and compares the spans after each sentinel.

  Args:
    max_examples: the number of examples to decode; None means all.
    samples: the number of decoded examples to keep for the report.
  """

  def __init__(
    self,
    context: EvalContext,
    *,
    max_examples: PositiveInt | None = 64,
    samples: NonNegativeInt = 8,
  ):
    self._context = context
    self._max_examples = max_examples
    self._samples = samples
    (length,) = context.task.features["decoder_target_tokens"].shape
    self._decode = context.jit(lambda model, batch: greedy(model, batch, max_length=length))

  def metric_names(self) -> tuple[str, ...]:
    return ("span_exact_match", "commonest_span", "sequence_exact_match")

  def __call__(self, arrays: dict[str, jax.Array]) -> EvalResult:
    """Return the scores and the number of `sequences`.

    `span_exact_match` and `sequence_exact_match` are fractions of spans and of whole target
    sequences. `commonest_span` is the `span_exact_match` of always predicting the commonest span.
    """
    vocabulary = self._context.task.vocabulary
    num_right_spans = 0
    num_right_sequences = 0
    num_sequences = 0
    span_counts: Counter[tuple[int, ...]] = Counter()
    samples = []
    for batch in self._context.global_batches(self._max_examples):
      predicted_BT = fetch(self._decode(arrays, batch))
      target_BT = fetch(batch["decoder_target_tokens"])
      input_BS = fetch(batch["encoder_input_tokens"])
      for row in np.flatnonzero(fetch(batch["example_index"]) >= 0):
        target = target_BT[row].tolist()
        predicted = predicted_BT[row].tolist()
        target_spans = spans_by_sentinel(target, vocabulary)
        predicted_spans = spans_by_sentinel(predicted, vocabulary)
        span_counts.update(target_spans.values())
        for sentinel, span in target_spans.items():
          num_right_spans += predicted_spans.get(sentinel) == span
        num_sequences += 1
        num_right_sequences += _until_eos(target, vocabulary) == _until_eos(predicted, vocabulary)
        if len(samples) < self._samples:
          inputs = input_BS[row].tolist()
          texts = {
            "input": inputs,
            "target": target,
            "prediction": predicted,
            "original": _replace_sentinels(inputs, target_spans),
            "filled": _replace_sentinels(inputs, predicted_spans),
          }
          samples.append({name: vocabulary.decode(ids) for name, ids in texts.items()})
    num_spans = max(span_counts.total(), 1)
    scores = {
      "span_exact_match": num_right_spans / num_spans,
      "commonest_span": max(span_counts.values(), default=0) / num_spans,
      "sequence_exact_match": num_right_sequences / max(num_sequences, 1),
      "sequences": num_sequences,
    }
    return EvalResult(scores, samples)


def _replace_sentinels(ids: Sequence[int], spans: dict[int, tuple[int, ...]]) -> list[int]:
  replaced = []
  for token in ids:
    replaced += spans.get(token, (token,))
  return replaced


def spans_by_sentinel(ids: Sequence[int], vocabulary) -> dict[int, tuple[int, ...]]:
  """Split `<s0> a b <s1> c </s>` into {s0: (a, b), s1: (c,)}.

  Tokens before the first sentinel are ignored.
  """
  sentinels = frozenset(vocabulary.sentinels)
  spans: dict[int, tuple[int, ...]] = {}
  current = None
  for token in _until_eos(ids, vocabulary):
    if token in sentinels:
      current = token
      spans.setdefault(current, ())
    elif current is not None:
      spans[current] += (token,)
  return spans


def _until_eos(ids: Sequence[int], vocabulary) -> list[int]:
  ids = list(ids)
  end = ids.index(vocabulary.eos_id) if vocabulary.eos_id in ids else len(ids)
  return [token for token in ids[:end] if token != vocabulary.pad_id]
