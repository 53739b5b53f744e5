"""Extractive question answering: exact match and F1 of SQuAD 1.1, SQuAD 2.0 and translations of
SQuAD."""

import heapq
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.errors import UserError
from t5x_like.evals import EvalContext, EvalResult, _labelled
from t5x_like.metrics.answers import normalize_mlqa
from t5x_like.metrics.squad import MultilingualSquad, SquadV1, SquadV2
from t5x_like.slots import PositiveInt

_LANGUAGES = ("ar", "de", "el", "en", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh")


class Evaluator:
  """An evaluator that answers each question with the best span of any window (Devlin et al. 2019,
  section 4.3).

  A span's score is the sum of the logits of its first and last token. It lies within the context
  and has at most `max_answer_tokens` tokens. If windows overlap, only the window with the most
  context around a span's first token scores the span. If questions may have no answer, "no answer"
  is predicted when the lowest score of [CLS] over the windows exceeds the best span's by more than
  `null_threshold`; `best_f1` and `best_exact` use the best threshold. The text of an answer is
  spelled as in the context.

  Args:
    unanswerable: whether questions may have no answer, as in SQuAD 2.0.
    language: a language, which selects MLQA's normalisation; None selects SQuAD's, which XQuAD's
      published scores have.
    n_best: candidates in the predictions, and the number of starts and ends tried in each window.
    max_answer_tokens, null_threshold: see above.
    ids: fields to copy to the predictions.
    max_examples: the number of windows, from the first; None means all.

  Raises:
    UserError: the model lacks the head, a language or field is unknown, or a question has no answer
      unexpectedly.
  """

  def __init__(
    self,
    context: EvalContext,
    *,
    unanswerable: bool = False,
    language: str | None = None,
    n_best: PositiveInt = 20,
    max_answer_tokens: PositiveInt = 30,
    null_threshold: float = 0.0,
    ids: tuple[str, ...] = ("id",),
    max_examples: PositiveInt | None = None,
  ):
    if language is not None and language not in _LANGUAGES:
      raise UserError(
        f"evaluator span_qa: language: found {language!r}, expected one of {', '.join(_LANGUAGES)}"
      )
    _labelled.check_labelled(context, "span_qa", {"start_logits": 2, "end_logits": 2})
    self._unanswerable = unanswerable
    self._language = language
    self._threshold = null_threshold
    self._n_best = n_best
    self._longest = max_answer_tokens
    self._ids = ids
    self._metric = MultilingualSquad(normalize_mlqa) if language else SquadV1()
    if unanswerable:
      self._metric = SquadV2(threshold=0.5)
    self._rows = _labelled.LabelledRows(context, _outputs, max_examples)
    self._windows = context.task.examples(ids)[: len(self._rows.tokens)]
    if not unanswerable and not all(window["answers"] for window in self._windows):
      raise UserError(
        f"evaluator span_qa: task {context.task.name} has questions without answers; set "
        "unanswerable=True"
      )

  def metric_names(self) -> tuple[str, ...]:
    return (
      *self._metric.names,
      *(SquadV2.detailed if self._unanswerable else ()),
      "examples",
    )

  def __call__(self, arrays: dict[str, jax.Array]) -> EvalResult:
    """Return `exact_match` and `f1`, or SQuAD 2.0's `exact`, `f1`, `HasAns_…`, `NoAns_…`, `best_…`;
    and `examples`."""
    questions: dict[int, dict[str, Any]] = {}
    for window, (start_S, end_S) in zip(self._windows, self._rows(arrays)):
      about = questions.setdefault(
        window["question"], {"window": window, "spans": [], "null": math.inf}
      )
      about["null"] = min(about["null"], float(start_S[0] + end_S[0]))
      about["spans"] += self._candidates(window, start_S, end_S)
    predictions = [self._prediction(**about) for about in questions.values()]
    gold = [about["window"]["answers"] for about in questions.values()]
    predicted: list[Any] = [row["best_answer"] for row in predictions]
    if self._language:
      gold = [(self._language, answers) for answers in gold]
    if self._unanswerable:
      predicted = [(row["best_answer"], row["no_answer_probability"]) for row in predictions]
    rows_NC = self._metric.compute_rows(gold, predicted)
    scores = self._metric.scores(rows_NC)
    scores = {name: score for name, score in scores.items() if math.isfinite(score)}
    if self._unanswerable:
      scores |= self._metric.details(rows_NC, gold, predicted)
    return EvalResult(
      scores | {"examples": len(gold)}, _labelled.sample_predictions(predictions), predictions
    )

  def _candidates(
    self, window: dict, start_S: np.ndarray, end_S: np.ndarray
  ) -> list[tuple[float, str]]:
    """Return the best spans of a window, each as (score, text)."""
    first = window["first"]
    spans_n2 = window["spans"]
    starts, ends = (x[first : first + len(spans_n2)] for x in (start_S, end_S))
    starts = np.where(window["most_context"], starts, -np.inf)
    likely = [np.argsort(-x, kind="stable")[: self._n_best] for x in (starts, ends)]
    length_KK = likely[1][None, :] - likely[0][:, None]
    score_KK = starts[likely[0]][:, None] + ends[likely[1]][None, :]
    fits = np.argwhere((length_KK >= 0) & (length_KK < self._longest) & np.isfinite(score_KK))
    best = heapq.nlargest(self._n_best, ((float(score_KK[i, j]), int(i), int(j)) for i, j in fits))
    context = window["context"]
    return [
      (score, context[spans_n2[likely[0][i], 0] : spans_n2[likely[1][j], 1]])
      for score, i, j in best
    ]

  def _prediction(
    self, window: dict, spans: list[tuple[float, str]], null: float
  ) -> dict[str, Any]:
    best = heapq.nlargest(self._n_best, dict.fromkeys(spans), key=lambda span: span[0])
    answer = best[0][1] if best else ""
    row = {
      "input": f"{window['record']['question']} | {window['context']}",
      "target": " / ".join(window["answers"]),
    }
    row["references"] = window["answers"]
    row |= {
      "prediction": answer,
      "best_answer": answer,
      "n_best": [{"text": t, "score": s} for s, t in best],
    }
    if self._unanswerable:
      margin = null - (best[0][0] if best else -math.inf) - self._threshold
      row["no_answer_probability"] = 1.0 / (1.0 + math.exp(-max(min(margin, 30.0), -30.0)))
      row["prediction"] = "" if margin > 0 else answer
    return _labelled.with_identifiers(row, window["record"], self._ids)


def _outputs(model, batch) -> tuple[jax.Array, jax.Array]:
  outputs = model(batch)
  return tuple(outputs[f"{end}_logits"].astype(jnp.float32) for end in ("start", "end"))
