"""The base class of metrics: a row of numbers for each example, and scores of any set of rows."""

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5x_like.errors import UserError


class Metric(abc.ABC):
  """A metric whose scores depend on each example only through a row of numbers.

  Call `metric(references, predictions)`. `rows` and `scores` are separate so that `resampling.py`
  can score many samples of the same rows.

  Attributes:
    names: the names of its scores.
  """

  names: tuple[str, ...]

  @abc.abstractmethod
  def rows(self, references: Sequence[Any], predictions: Sequence[Any]) -> np.ndarray:
    """Return C numbers for each of N examples, [N, C]."""

  @abc.abstractmethod
  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    """Return the scores of a set of examples, by name; an undefined score is NaN."""

  def details(
    self, rows_NC: np.ndarray, references: Sequence[Any], predictions: Sequence[Any]
  ) -> dict[str, Any]:
    """Return further results to print with the scores: counts, parts, a signature."""
    return {}

  def check_references(self, references: Sequence[Any]) -> None:
    """Raise UserError for references that the metric cannot score, whatever the predictions."""
    del references

  def compute_rows(self, references: Sequence[Any], predictions: Sequence[Any]) -> np.ndarray:
    """Return `rows` after checking that there are examples, and one prediction for each reference.

    Raises:
      UserError: there are no examples, the numbers differ, or `check_references` raises it.
    """
    if len(references) != len(predictions):
      raise UserError(
        f"found {len(predictions)} predictions for {len(references)} references, "
        "expected one for each"
      )
    if not references:
      raise UserError("found no examples: a score over zero examples is not defined")
    self.check_references(references)
    return self.rows(references, predictions)

  def __call__(self, references: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Return the scores of predictions, one for each reference; errors as for `compute_rows`."""
    return self.scores(self.compute_rows(references, predictions))


class AdditiveMetric(Metric):
  """A metric whose scores depend on the examples only through the sums of their rows.

  The scores of many samples are computed at once, which makes resampling fast.
  """

  @abc.abstractmethod
  def scores_of_sums(self, sums_XC: np.ndarray) -> dict[str, np.ndarray]:
    """Return the scores [...] of sums of rows [..., C], by name; an undefined score is NaN."""

  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    scores = self.scores_of_sums(np.sum(rows_NC, axis=0, dtype=np.float64))
    return {name: float(score) for name, score in scores.items()}


def percent(share: float) -> float:
  """Return a share in percent."""
  return 100.0 * float(share)


def percent_of(part: float, total: float) -> float:
  """Return `part / total` in percent; NaN if `total` is 0."""
  return percent(part / total) if total else float("nan")
