"""Greedy span infilling: how often the model restores exactly the spans removed from the text."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np

from t5x_like.decoding.generate import greedy
from t5x_like.evals import BaseEvaluator, EvalResult
from t5x_like.parallel.rules import fetch
from t5x_like.slots import NonNegativeInt, PositiveInt


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(BaseEvaluator):
  """An evaluator that decodes corrupted inputs greedily and compares the spans after each sentinel.

  Attributes:
    max_examples: the number of examples to decode; None means all.
    samples: the number of decoded examples to keep for the report.
  """

  max_examples: PositiveInt | None = 64
  samples: NonNegativeInt = 8

  def metric_names(self):
    return ("span_exact_match", "commonest_span", "sequence_exact_match")

  def compute(self, model, batch):
    """Return the decoded targets, int32 [B, T]."""
    (length,) = self.context.task.features["decoder_target_tokens"].shape
    return greedy(model, batch, max_length=length)

  def __call__(self, arrays):
    """Return the scores and the number of `sequences`.

    `span_exact_match` and `sequence_exact_match` are fractions of spans and of whole target
    sequences. `commonest_span` is the `span_exact_match` of always predicting the commonest span.
    """
    vocabulary = self.context.task.vocabulary
    num_right_spans = 0
    num_right_sequences = 0
    num_sequences = 0
    span_counts: Counter[tuple[int, ...]] = Counter()
    samples = []
    for batch in self.context.global_batches(self.max_examples):
      predicted_BT = fetch(self.run(arrays, batch))
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
        if len(samples) < self.samples:
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
  """Return the ids of a text with the spans in place of their sentinels."""
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
  """Return the ids before the first EOS, without padding."""
  ids = list(ids)
  end = ids.index(vocabulary.eos_id) if vocabulary.eos_id in ids else len(ids)
  return [token for token in ids[:end] if token != vocabulary.pad_id]
