"""Scores of class labels (scikit-learn), of groups of labels (MultiRC) and of numbers (scipy)."""

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from t5x_like.metrics.metric import Metric, percent


# Each score takes `sklearn.metrics`, which is slow to import, and pairs of labels with weights.
def _accuracy(metrics, gold, predicted, weights, classes: int) -> float:
  return metrics.accuracy_score(gold, predicted, sample_weight=weights)


def _f1(metrics, gold, predicted, weights, classes: int) -> float:
  if classes == 2:
    # Label 2 stands for no class. It counts as the wrong one, as in T5's `f1_score_with_invalid`.
    predicted = np.where(predicted == 2, 1 - gold, predicted)
  return metrics.f1_score(
    gold, predicted, labels=[1], average="macro", sample_weight=weights, zero_division=0
  )


def _macro_f1(metrics, gold, predicted, weights, classes: int) -> float:
  labels = range(classes)
  return metrics.f1_score(
    gold, predicted, labels=labels, average="macro", sample_weight=weights, zero_division=0
  )


def _matthews(metrics, gold, predicted, weights, classes: int) -> float:
  return metrics.matthews_corrcoef(gold, predicted, sample_weight=weights)


SCORES: Mapping[str, Callable] = {
  "accuracy": _accuracy,
  "f1": _f1,  # of class 1
  "macro_f1": _macro_f1,  # the mean over all classes, even absent ones (T5's mean_multiclass_f1)
  "matthews_correlation": _matthews,
}


class Classification(Metric):
  """Scores of one class index per example.

  A prediction of None, such as a generated text that names no class, counts as an additional class
  (-1 in T5's code). For the F1 of two classes, it counts as the wrong one.

  Args:
    classes: number of classes; references are 0 to `classes - 1`.
    scores: keys of `SCORES`.
  """

  def __init__(self, classes: int, scores: Sequence[str] = ("accuracy",)):
    self._classes = classes
    self.names = tuple(scores)

  def rows(self, references: Sequence[int], predictions: Sequence[int | None]) -> np.ndarray:
    pairs = []
    for gold, predicted in zip(references, predictions):
      pairs.append((gold, self._classes if predicted is None else predicted))
    return np.array(pairs, np.int64).reshape(-1, 2)

  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    """Compute the scores from distinct (gold, predicted) pairs and their counts, for speed."""
    counts = np.bincount(rows_NC[:, 0] * (self._classes + 1) + rows_NC[:, 1])
    distinct_pairs = np.flatnonzero(counts)
    pair_counts = tuple(zip(distinct_pairs.tolist(), counts[distinct_pairs].tolist()))
    return dict(_score_pairs(self._classes, self.names, pair_counts))


@functools.lru_cache(maxsize=1024)  # samples of few examples have the same counts
def _score_pairs(
  classes: int, names: tuple[str, ...], pair_counts: tuple[tuple[int, int], ...]
) -> tuple[tuple[str, float], ...]:
  """Return (name, score) of the counts of pairs, each `gold * (classes + 1) + predicted`."""
  from sklearn import metrics

  pairs, weights = np.array(pair_counts).T
  gold, predicted = np.divmod(pairs, classes + 1)
  scores = []
  for name in names:
    scores.append((name, percent(SCORES[name](metrics, gold, predicted, weights, classes))))
  return tuple(scores)


class Accuracy(Metric):
  """The share of right predictions, according to a function of (reference, prediction)."""

  def __init__(
    self,
    matches: Callable[..., bool] = lambda reference, prediction: reference == prediction,
    name: str = "accuracy",
  ):
    self._matches = matches
    self._name = name
    self.names = (name,)

  def rows(self, references: Sequence, predictions: Sequence) -> np.ndarray:
    return np.array([[self._matches(*pair)] for pair in zip(references, predictions)], bool)

  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    return {self._name: percent(rows_NC.mean())}


class MultiRc(Metric):
  """MultiRC's F1 over all answer options (F1a), and the share of questions with every option right.

  Examples are questions; references and predictions are a 0 or 1 for each answer option.
  """

  names = ("f1a", "exact_match")

  def rows(
    self, references: Sequence[Sequence[int]], predictions: Sequence[Sequence[int]]
  ) -> np.ndarray:
    """Return four numbers for each question, int64 [N, 4].

    The first is 1 if all options are right. The others count the options that are 1 in both the
    prediction and the reference, in the prediction, and in the reference.
    """
    rows = []
    for reference, prediction in zip(references, predictions):
      gold = np.asarray(reference)
      predicted = np.asarray(prediction)
      is_exact = (gold == predicted).all()
      rows.append((is_exact, (gold & predicted).sum(), predicted.sum(), gold.sum()))
    return np.array(rows, np.int64)

  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    num_exact, num_common, num_predicted, num_gold = rows_NC.sum(0)
    num_ones = num_predicted + num_gold
    return {
      "f1a": percent(2 * num_common / num_ones) if num_ones else 0.0,
      "exact_match": percent(num_exact / len(rows_NC)),
    }


class Correlation(Metric):
  """Pearson's and Spearman's correlation.

  Both are NaN if references or predictions are constant, or if there are fewer than two pairs.
  """

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
