"""The base of metrics: a row of numbers for each example, and scores of any set of rows."""

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5x_like.errors import UserError


class Metric(abc.ABC):
  """A metric whose scores depend on each example only through a row of numbers.

  Call `metric(references, predictions)`; `rows` and `scores` are separate for `resampling`.

  Attributes:
    names: of its scores.
  """

  names: tuple[str, ...]

  @abc.abstractmethod
  def rows(self, references: Sequence[Any], predictions: Sequence[Any]) -> np.ndarray:
    """[N, C] numbers of N examples."""

  @abc.abstractmethod
  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    """Scores of a set of examples; NaN if a score is undefined for it."""

  def details(self, rows_NC: np.ndarray, references: Sequence[Any], predictions: Sequence[Any]) -> dict[str, Any]:
    """Other results to print beside the scores: counts, parts, a signature."""
    return {}

  def checked_rows(self, references: Sequence[Any], predictions: Sequence[Any]) -> np.ndarray:
    """`rows`, checked to have one prediction for each reference and at least one example.

    Raises:
      UserError: there are no examples, or the numbers differ.
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
  """`part / whole` in percent; NaN if `whole` is 0."""
  return percent(part / whole) if whole else float("nan")
