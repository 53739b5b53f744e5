"""Scores of numbers against numbers, by scipy: Pearson's and Spearman's correlation."""

from collections.abc import Sequence

import numpy as np

from t5x_like.metrics.metric import Metric, percent


class Correlation(Metric):
  """Pearson's and Spearman's correlation; NaN if either side is constant or there are fewer than two pairs."""

  names = ("pearson", "spearman")

  def rows(self, references: Sequence[float], predictions: Sequence[float]) -> np.ndarray:
    return np.array([references, predictions], np.float64).T

  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    from scipy import stats

    gold, predicted = rows_NC.T
    if len(rows_NC) < 2 or np.ptp(gold) == 0 or np.ptp(predicted) == 0:
      return {"pearson": float("nan"), "spearman": float("nan")}
    return {
      "pearson": percent(stats.pearsonr(gold, predicted).statistic),
      "spearman": percent(stats.spearmanr(gold, predicted).statistic),
    }
