"""MultiRC: F1 over all answer options (F1a), and the share of questions with every option right (EM)."""

from collections.abc import Sequence

import numpy as np

from t5x_like.metrics.metric import Metric, percent


class MultiRc(Metric):
  """MultiRC's scores. Examples are questions; references and predictions are a 0 or 1 for each answer option."""

  names = ("f1a", "exact_match")

  def rows(self, references: Sequence[Sequence[int]], predictions: Sequence[Sequence[int]]) -> np.ndarray:
    """Return [N, 4]: whether all options are right, and the number of ones in both, in predictions, in references."""
    pairs = [(np.asarray(gold), np.asarray(given)) for gold, given in zip(references, predictions)]
    return np.array([((g == p).all(), (g & p).sum(), p.sum(), g.sum()) for g, p in pairs], np.int64)

  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    exact, both, predicted, true = rows_NC.sum(0)
    return {
      "f1a": percent(2 * both / (predicted + true)) if predicted + true else 0.0,
      "exact_match": percent(exact / len(rows_NC)),
    }
