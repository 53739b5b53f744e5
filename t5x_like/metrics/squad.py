"""SQuAD's exact match and F1, versions 1.1 and 2.0; also for XQuAD, MLQA, open questions and
ReCoRD."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from t5x_like.metrics.answers import best_score, normalize_squad, token_f1, token_f1_or_empty
from t5x_like.metrics.metric import Metric, percent, ratio


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
  """Exact match and token F1: the maximum over a question's answers, averaged over all questions
  (evaluate-v1.1.py).

  References are the answers of each question, at least one; a prediction of None (no answer given)
  scores 0.

  Args:
    normalize: a normalisation from `answers`.
  """

  names = ("exact_match", "f1")

  def __init__(self, normalize: Callable[[str], str] = normalize_squad):
    self._normalize = normalize

  def rows(
    self, references: Sequence[Sequence[str]], predictions: Sequence[str | None]
  ) -> np.ndarray:
    return np.array([self._row(*pair) for pair in zip(references, predictions)], np.float64)

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
  """SQuAD 2.0's scores (evaluate-v2.0.py): questions may have no answer, which an empty prediction
  states.

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
  _EXACT, _F1, _COUNTED_EXACT, _COUNTED_F1, _ANSWERABLE, _PROBABILITY, _EMPTY, _GIVEN = range(8)

  def __init__(self, threshold: float = 1.0):
    self._threshold = threshold

  def rows(
    self, references: Sequence[Sequence[str]], predictions: Sequence[tuple[str, float] | None]
  ) -> np.ndarray:
    return np.array([self._row(*pair) for pair in zip(references, predictions)], np.float64)

  def _row(self, answers: Sequence[str], prediction: tuple[str, float] | None) -> list[float]:
    answerable = bool(answers)
    if prediction is None:
      return [0, 0, 0, 0, answerable, 0, 0, 0]
    text, probability = prediction
    golds = list(filter(None, map(normalize_squad, answers))) or [""]
    predicted = normalize_squad(text)
    raw = [float(predicted in golds), best_score(token_f1_or_empty, golds, predicted)]
    counted = [float(not answerable)] * 2 if probability > self._threshold else raw
    return [*raw, *counted, answerable, probability, not text, 1]

  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    given_NC = rows_NC[rows_NC[:, self._GIVEN] > 0]
    answerable = given_NC[:, self._ANSWERABLE] > 0
    found = {}
    for prefix, part_NC in (
      ("", given_NC),
      ("HasAns_", given_NC[answerable]),
      ("NoAns_", given_NC[~answerable]),
    ):
      found[f"{prefix}exact"] = ratio(part_NC[:, self._COUNTED_EXACT].sum(), len(part_NC))
      found[f"{prefix}f1"] = ratio(part_NC[:, self._COUNTED_F1].sum(), len(part_NC))
    return found

  def details(self, rows_NC: np.ndarray, references, predictions) -> dict[str, Any]:
    """Return the counts by kind of question and, if no-answer probabilities differ, the best
    thresholds."""
    given_NC = rows_NC[rows_NC[:, self._GIVEN] > 0]
    answerable = int(given_NC[:, self._ANSWERABLE].sum())
    found = {
      "total": len(given_NC),
      "HasAns_total": answerable,
      "NoAns_total": len(given_NC) - answerable,
    }
    if len(given_NC) and np.ptp(given_NC[:, self._PROBABILITY]):
      for name, column in (("exact", self._EXACT), ("f1", self._F1)):
        found[f"best_{name}"], found[f"best_{name}_thresh"] = self._best_threshold(
          rows_NC, given_NC, column
        )
    return found

  def _best_threshold(
    self, rows_NC: np.ndarray, given_NC: np.ndarray, column: int
  ) -> tuple[float, float]:
    """Return (score, threshold) of the official sweep, which starts without answers and adds the
    surest first."""
    gains = np.where(
      given_NC[:, self._ANSWERABLE] > 0, given_NC[:, column], given_NC[:, self._EMPTY] - 1
    )
    order = np.argsort(given_NC[:, self._PROBABILITY], kind="stable")
    unanswerable = (rows_NC[:, self._ANSWERABLE] == 0).sum()
    score_K = unanswerable + np.concatenate([[0.0], np.cumsum(gains[order])])
    place = int(score_K.argmax())
    threshold = given_NC[order[place - 1], self._PROBABILITY] if place else 0.0
    return ratio(score_K[place], len(given_NC)), float(threshold)
