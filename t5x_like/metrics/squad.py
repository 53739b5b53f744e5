"""SQuAD's exact match and F1, also for XQuAD, MLQA, open questions and ReCoRD."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from t5x_like.metrics.answers import best_score, normalize_squad, token_f1, token_f1_or_empty
from t5x_like.metrics.metric import Metric, percent, percent_of


def answer_row(
  answers: Sequence[str], prediction: str | None, normalize: Callable[[str], str]
) -> tuple[float, float]:
  """Return (exact match, F1) of one prediction, each the best over the answers."""
  if prediction is None:
    return 0.0, 0.0
  golds = list(map(normalize, answers))
  predicted = normalize(prediction)
  return float(predicted in golds), best_score(token_f1, golds, predicted)


class SquadV1(Metric):
  """Exact match and token F1 (evaluate-v1.1.py).

  Each is the maximum over a question's answers, averaged over all questions. References are the
  answers of each question, at least one; a prediction of None (no answer given) scores 0.

  Args:
    normalize: a normalisation from `answers`.
  """

  names = ("exact_match", "f1")

  def __init__(self, normalize: Callable[[str], str] = normalize_squad):
    self._normalize = normalize

  def rows(
    self, references: Sequence[Sequence[str]], predictions: Sequence[str | None]
  ) -> np.ndarray:
    rows = [self._row(*pair) for pair in zip(references, predictions)]
    return np.array(rows, np.float64)

  def _row(self, answers: Sequence[str], prediction: str | None) -> tuple[float, float]:
    return answer_row(answers, prediction, self._normalize)

  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    exact, f1 = rows_NC.mean(0)
    return {"exact_match": percent(exact), "f1": percent(f1)}


class MultilingualSquad(SquadV1):
  """`SquadV1` in several languages: a reference is (language, answers).

  Args:
    normalize: a normalisation of (text, language), such as `answers.normalize_mlqa`.
  """

  def __init__(self, normalize: Callable[[str, str], str]):
    super().__init__()
    self._normalize_in = normalize

  def _row(
    self, reference: tuple[str, Sequence[str]], prediction: str | None
  ) -> tuple[float, float]:
    language, answers = reference
    return answer_row(answers, prediction, lambda text: self._normalize_in(text, language))


class SquadV2(Metric):
  """SQuAD 2.0's scores (evaluate-v2.0.py): an empty prediction means that there is no answer.

  References are the answers of each question, empty if it has none. A prediction is a text and the
  probability that there is no answer, or None if the question was skipped; as in the official
  script, averages then skip it too.

  Args:
    threshold: predictions with a higher no-answer probability count as empty.
  """

  names = tuple(f"{kind}{score}" for kind in ("", "HasAns_", "NoAns_") for score in ("exact", "f1"))
  detailed = (
    "total",
    "HasAns_total",
    "NoAns_total",
    "best_exact",
    "best_exact_thresh",
    "best_f1",
    "best_f1_thresh",
  )
  # The columns of rows: scores as predicted, scores under the threshold, and the data for finding
  # the best threshold.
  _EXACT = 0
  _F1 = 1
  _COUNTED_EXACT = 2
  _COUNTED_F1 = 3
  _ANSWERABLE = 4
  _PROBABILITY = 5
  _EMPTY = 6
  _IS_PREDICTED = 7

  def __init__(self, threshold: float = 1.0):
    self._threshold = threshold

  def rows(
    self, references: Sequence[Sequence[str]], predictions: Sequence[tuple[str, float] | None]
  ) -> np.ndarray:
    rows = [self._row(*pair) for pair in zip(references, predictions)]
    return np.array(rows, np.float64)

  def _row(self, answers: Sequence[str], prediction: tuple[str, float] | None) -> list[float]:
    """Return the columns of one question."""
    is_answerable = bool(answers)
    if prediction is None:
      return [0, 0, 0, 0, is_answerable, 0, 0, 0]
    text, probability = prediction
    normalized = [normalize_squad(answer) for answer in answers]
    golds = [gold for gold in normalized if gold] or [""]
    predicted = normalize_squad(text)
    exact = float(predicted in golds)
    f1 = best_score(token_f1_or_empty, golds, predicted)
    counted = [exact, f1]
    if probability > self._threshold:
      score_of_empty = float(not is_answerable)
      counted = [score_of_empty, score_of_empty]
    return [exact, f1, *counted, is_answerable, probability, not text, 1]

  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    predicted_NC = rows_NC[rows_NC[:, self._IS_PREDICTED] > 0]
    answerable = predicted_NC[:, self._ANSWERABLE] > 0
    rows_by_prefix = {
      "": predicted_NC,
      "HasAns_": predicted_NC[answerable],
      "NoAns_": predicted_NC[~answerable],
    }
    scores = {}
    for prefix, kind_NC in rows_by_prefix.items():
      exact = kind_NC[:, self._COUNTED_EXACT].sum()
      f1 = kind_NC[:, self._COUNTED_F1].sum()
      scores[f"{prefix}exact"] = percent_of(exact, len(kind_NC))
      scores[f"{prefix}f1"] = percent_of(f1, len(kind_NC))
    return scores

  def details(self, rows_NC: np.ndarray, references, predictions) -> dict[str, Any]:
    """Return the counts by kind of question and, if probabilities differ, the best thresholds."""
    predicted_NC = rows_NC[rows_NC[:, self._IS_PREDICTED] > 0]
    num_answerable = int(predicted_NC[:, self._ANSWERABLE].sum())
    details = {
      "total": len(predicted_NC),
      "HasAns_total": num_answerable,
      "NoAns_total": len(predicted_NC) - num_answerable,
    }
    if len(predicted_NC) and np.ptp(predicted_NC[:, self._PROBABILITY]):
      for name, column in (("exact", self._EXACT), ("f1", self._F1)):
        score, threshold = self._best_threshold(rows_NC, predicted_NC, column)
        details[f"best_{name}"] = score
        details[f"best_{name}_thresh"] = threshold
    return details

  def _best_threshold(
    self, rows_NC: np.ndarray, predicted_NC: np.ndarray, column: int
  ) -> tuple[float, float]:
    """Return (score, threshold) of the official sweep, which adds answers from the surest."""
    gains = np.where(
      predicted_NC[:, self._ANSWERABLE] > 0,
      predicted_NC[:, column],
      predicted_NC[:, self._EMPTY] - 1,
    )
    order = np.argsort(predicted_NC[:, self._PROBABILITY], kind="stable")
    num_unanswerable = (rows_NC[:, self._ANSWERABLE] == 0).sum()
    score_K = num_unanswerable + np.concatenate([[0.0], np.cumsum(gains[order])])
    num_answers = int(score_K.argmax())
    threshold = 0.0
    if num_answers:
      threshold = predicted_NC[order[num_answers - 1], self._PROBABILITY]
    return percent_of(score_K[num_answers], len(predicted_NC)), float(threshold)
