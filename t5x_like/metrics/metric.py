"""What every metric is: a row of numbers for each example, and scores of any set of rows."""

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5x_like.errors import UserError


class Metric(abc.ABC):
  """A metric whose scores depend on the examples only through one row of numbers each.

  `metric(references, predictions)` is what to call; `rows` and `scores` are apart for `resampling`.
  """

  @abc.abstractmethod
  def rows(self, references: Sequence[Any], predictions: Sequence[Any]) -> np.ndarray:
    """[N, C] numbers of N examples."""

  @abc.abstractmethod
  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    """Scores of a set of examples, NaN where a score is not defined for it."""

  def details(self, rows_NC: np.ndarray, references: Sequence[Any], predictions: Sequence[Any]) -> dict[str, Any]:
    """What is worth printing beside the scores: counts, parts, a signature."""
    return {}

  def checked_rows(self, references: Sequence[Any], predictions: Sequence[Any]) -> np.ndarray:
    """`rows`, of at least one example and as many predictions as references.

    Raises:
      UserError: there are none, or not as many.
    """
    if len(references) != len(predictions):
      raise UserError(f"found {len(predictions)} predictions for {len(references)} references, expected one for each")
    if not references:
      raise UserError("found no examples: a score over zero examples is not defined")
    return self.rows(references, predictions)

  def __call__(self, references: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """The scores of predictions, one for each reference; raises as `checked_rows`."""
    return self.scores(self.checked_rows(references, predictions))


def percent(share: float) -> float:
  return 100.0 * float(share)


def ratio(part: float, whole: float) -> float:
  """`part / whole` in percent; NaN of nothing."""
  return percent(part / whole) if whole else float("nan")
