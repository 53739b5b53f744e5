"""Scores of class labels, by scikit-learn: accuracy, F1, macro F1, Matthews correlation."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from t5x_like.metrics.metric import Metric, percent


def _accuracy(gold, predicted, weights, classes: int) -> float:
  from sklearn.metrics import accuracy_score

  return accuracy_score(gold, predicted, sample_weight=weights)


def _f1(gold, predicted, weights, classes: int) -> float:
  from sklearn.metrics import f1_score

  return f1_score(gold, predicted, labels=[1], average="macro", sample_weight=weights, zero_division=0)


def _macro_f1(gold, predicted, weights, classes: int) -> float:
  from sklearn.metrics import f1_score

  return f1_score(gold, predicted, labels=range(classes), average="macro", sample_weight=weights, zero_division=0)


def _matthews(gold, predicted, weights, classes: int) -> float:
  from sklearn.metrics import matthews_corrcoef

  return matthews_corrcoef(gold, predicted, sample_weight=weights)


SCORES: Mapping[str, Callable] = {
  "accuracy": _accuracy,
  "f1": _f1,  # of class 1
  "macro_f1": _macro_f1,  # the mean over all classes, even absent ones (T5's mean_multiclass_f1)
  "matthews_correlation": _matthews,
}


class Classification(Metric):
  """Scores of one class index per example.

  A prediction of None, such as a generated text that names no class, counts as wrong: as the other of two classes (T5's
  `f1_score_with_invalid`), or else as an additional class.

  Args:
    classes: number of classes; references are 0 to `classes - 1`.
    scores: keys of `SCORES`.
  """

  def __init__(self, classes: int, scores: Sequence[str] = ("accuracy",)):
    self._classes = classes
    self._scores = {name: SCORES[name] for name in scores}
    self.names = tuple(self._scores)

  def rows(self, references: Sequence[int], predictions: Sequence[int | None]) -> np.ndarray:
    def wrong(gold: int) -> int:
      return 1 - gold if self._classes == 2 else self._classes

    pairs = [(gold, wrong(gold) if given is None else given) for gold, given in zip(references, predictions)]
    return np.array(pairs, np.int64).reshape(-1, 2)

  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    """Compute the scores from distinct (gold, predicted) pairs weighted by count, which is faster than by rows."""
    width = self._classes + 1
    counts = np.bincount(rows_NC[:, 0] * width + rows_NC[:, 1], minlength=width * width)
    cells = np.flatnonzero(counts)
    gold, predicted = np.divmod(cells, width)
    return {name: percent(score(gold, predicted, counts[cells], self._classes)) for name, score in self._scores.items()}


class Matches(Metric):
  """The share of right predictions, according to a function of (reference, prediction)."""

  def __init__(
    self, matches: Callable[..., bool] = lambda reference, prediction: reference == prediction, name: str = "accuracy"
  ):
    self._matches = matches
    self._name, self.names = name, (name,)

  def rows(self, references: Sequence, predictions: Sequence) -> np.ndarray:
    return np.array([[self._matches(*pair)] for pair in zip(references, predictions)], bool)

  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    return {self._name: percent(rows_NC.mean())}
