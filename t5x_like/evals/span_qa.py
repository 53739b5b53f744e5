"""Extractive question answering: exact match and F1 of SQuAD 1.1, 2.0 and its translations."""

import dataclasses
import heapq
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from t5x_like.errors import UserError
from t5x_like.evals import EvalResult, _labelled
from t5x_like.metrics.answers import normalize_mlqa
from t5x_like.metrics.squad import MultilingualSquad, SquadV1, SquadV2
from t5x_like.slots import PositiveInt

_LANGUAGES = ("ar", "de", "el", "en", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh")


@dataclasses.dataclass
class _Question:
  """The windows of a question.

  Attributes:
    window: its first window.
    spans: (score, text) of the best spans of all windows.
    null_score: the lowest score of [CLS].
  """

  window: dict[str, Any]
  spans: list[tuple[float, str]] = dataclasses.field(default_factory=list)
  null_score: float = math.inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(_labelled.LabelledEvaluator):
  """An evaluator that answers each question with the best span of any window.

  It follows Devlin et al. (2019), section 4.3. A span's score is the sum of the logits of its first
  and last token. It lies within the context and has at most `max_answer_tokens` tokens. If windows
  overlap, only the window with the most context around a span's first token scores the span. If
  questions may have no answer, "no answer" is predicted when the lowest score of [CLS] over the
  windows exceeds the best span's by more than `null_threshold`; `best_f1` and `best_exact` use the
  best threshold. The text of an answer is spelled as in the context.

  Attributes:
    unanswerable: whether questions may have no answer, as in SQuAD 2.0.
    language: the language for MLQA's normalisation; None selects SQuAD's, as in XQuAD's published
      scores.
    n_best: candidates in the predictions, and the number of starts and ends tried in each window.
    max_answer_tokens, null_threshold: see above.
    max_examples: the number of windows, from the first; None means all.

  Raises:
    UserError: the model lacks the head, a language or field is unknown, or a question has no answer
      unexpectedly.
  """

  unanswerable: bool = False
  language: str | None = None
  n_best: PositiveInt = 20
  max_answer_tokens: PositiveInt = 30
  null_threshold: float = 0.0
  ids: tuple[str, ...] = ("id",)

  def check(self) -> None:
    if self.language is not None and self.language not in _LANGUAGES:
      raise UserError(
        f"evaluator span_qa: language: found {self.language!r}, expected one of "
        f"{', '.join(_LANGUAGES)}"
      )
    _labelled.check_labelled(self.context, "span_qa", {"start_logits": 2, "end_logits": 2})
    if not self.unanswerable and not all(window["answers"] for window in self.examples):
      raise UserError(
        f"evaluator span_qa: found questions without answers in task {self.context.task.name}; set "
        "unanswerable=True"
      )

  @property
  def _metric(self):
    if self.unanswerable:
      return SquadV2(threshold=0.5)
    return MultilingualSquad(normalize_mlqa) if self.language else SquadV1()

  def compute(self, model, batch):
    """Return the logits of each token as the first and as the last of a span, float32 [B, S]."""
    outputs = model(batch)
    start_BS = outputs["start_logits"].astype(jnp.float32)
    end_BS = outputs["end_logits"].astype(jnp.float32)
    return start_BS, end_BS

  def metric_names(self):
    names = list(self._metric.names)
    if self.unanswerable:
      names += SquadV2.detailed
    return (*names, "examples")

  def __call__(self, arrays):
    """Return `exact_match` and `f1`, or the scores of SQuAD 2.0, and the number of `examples`.

    SQuAD 2.0's scores are `exact`, `f1`, `HasAns_…`, `NoAns_…` and `best_…`.
    """
    questions: dict[int, _Question] = {}
    for window, (start_S, end_S) in zip(self.examples, self.rows(arrays)):
      question = questions.setdefault(window["question"], _Question(window))
      question.null_score = min(question.null_score, float(start_S[0] + end_S[0]))
      question.spans += self._candidates(window, start_S, end_S)
    predictions = [self._describe_prediction(question) for question in questions.values()]
    gold = [question.window["answers"] for question in questions.values()]
    predicted: list[Any] = [row["best_answer"] for row in predictions]
    if self.language:
      gold = [(self.language, answers) for answers in gold]
    if self.unanswerable:
      predicted = [(row["best_answer"], row["no_answer_probability"]) for row in predictions]
    rows_NC = self._metric.compute_rows(gold, predicted)
    scores = self._metric.scores(rows_NC)
    scores = {name: score for name, score in scores.items() if math.isfinite(score)}
    if self.unanswerable:
      scores |= self._metric.details(rows_NC, gold, predicted)
    scores["examples"] = len(gold)
    return EvalResult(scores, _labelled.sample_predictions(predictions), predictions)

  def _candidates(
    self, window: dict, start_S: np.ndarray, end_S: np.ndarray
  ) -> list[tuple[float, str]]:
    """Return the best spans of a window, each as (score, text)."""
    first = window["first"]
    characters_n2 = window["spans"]  # begin and end of each token in the context
    start_n = start_S[first : first + len(characters_n2)]
    end_n = end_S[first : first + len(characters_n2)]
    start_n = np.where(window["most_context"], start_n, -np.inf)
    starts_K = np.argsort(-start_n, kind="stable")[: self.n_best]
    ends_K = np.argsort(-end_n, kind="stable")[: self.n_best]
    length_KK = ends_K[None, :] - starts_K[:, None]
    score_KK = start_n[starts_K][:, None] + end_n[ends_K][None, :]
    is_short_KK = (length_KK >= 0) & (length_KK < self.max_answer_tokens)
    candidates = []
    for i, j in np.argwhere(is_short_KK & np.isfinite(score_KK)):
      candidates.append((float(score_KK[i, j]), int(i), int(j)))
    spans = []
    for score, i, j in heapq.nlargest(self.n_best, candidates):
      begin = characters_n2[starts_K[i], 0]
      end = characters_n2[ends_K[j], 1]
      spans.append((score, window["context"][begin:end]))
    return spans

  def _describe_prediction(self, question: _Question) -> dict[str, Any]:
    """Return the entry of a question in the predictions."""
    spans = dict.fromkeys(question.spans)
    best_spans = heapq.nlargest(self.n_best, spans, key=lambda span: span[0])
    best_score, answer = best_spans[0] if best_spans else (-math.inf, "")
    window = question.window
    row = {
      "input": f"{window['record']['question']} | {window['context']}",
      "target": " / ".join(window["answers"]),
      "references": window["answers"],
      "prediction": answer,
      "best_answer": answer,
      "n_best": [{"text": text, "score": score} for score, text in best_spans],
    }
    if self.unanswerable:
      margin = question.null_score - best_score - self.null_threshold
      row["no_answer_probability"] = 1.0 / (1.0 + math.exp(-max(min(margin, 30.0), -30.0)))
      row["prediction"] = "" if margin > 0 else answer
    return _labelled.prepend_ids(row, window["record"], self.ids)
