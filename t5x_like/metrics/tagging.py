"""Scores of tag sequences: token accuracy, and entity F1 by seqeval."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from t5x_like.metrics.metric import Metric, percent, percent_of


class TagAccuracy(Metric):
  """The share of tokens whose tag is right; an example is a sentence, given by its tags."""

  names = ("accuracy",)

  def rows(
    self, references: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
  ) -> np.ndarray:
    """Return [N, 2]: the numbers of right tags and of tokens of each sentence."""
    rows = []
    for reference, prediction in zip(references, predictions):
      num_right = 0
      for gold, predicted in zip(reference, prediction):
        num_right += gold == predicted
      rows.append((num_right, len(reference)))
    return np.array(rows, np.int64)

  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    right, tokens = rows_NC.sum(0)
    return {"accuracy": percent_of(right, tokens)}

  def details(self, rows_NC: np.ndarray, references, predictions) -> dict[str, Any]:
    """Return the number of tokens."""
    return {"tokens": int(rows_NC[:, 1].sum())}


class EntityF1(Metric):
  """Precision, recall and F1 of entities, micro-averaged as in conlleval.

  seqeval extracts the entities from BIO (or BIOES) tags in its default mode, which equals
  conlleval: an I- without its B- begins an entity. An entity is right if its type and both its ends
  are right. A word without a tag is outside all entities.
  """

  names = ("precision", "recall", "f1")

  def rows(
    self, references: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
  ) -> np.ndarray:
    """Return [N, 3]: the numbers of right, predicted and true entities of each sentence."""
    from seqeval.metrics.sequence_labeling import get_entities

    rows = []
    for reference, prediction in zip(references, predictions):
      gold = set(get_entities([tag or "O" for tag in reference]))
      predicted = set(get_entities([tag or "O" for tag in prediction]))
      rows.append((len(gold & predicted), len(predicted), len(gold)))
    return np.array(rows, np.int64)

  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    """Return the scores; a score with a denominator of 0 is 0, as in seqeval."""
    right, predicted, true = rows_NC.sum(0).tolist()
    return {
      "precision": _ratio_or_zero(right, predicted),
      "recall": _ratio_or_zero(right, true),
      "f1": _ratio_or_zero(2 * right, predicted + true),
    }

  def details(self, rows_NC: np.ndarray, references, predictions) -> dict[str, Any]:
    """Return the number of true entities, and the scores by type of entity."""
    from seqeval.metrics import classification_report

    if not rows_NC[:, 1:].any():
      return {"entities": 0}
    gold = [list(tags) for tags in references]
    predicted = [list(tags) for tags in predictions]
    report = classification_report(gold, predicted, output_dict=True, zero_division=0)
    types = {}
    for entity_type, scores in report.items():
      if not entity_type.endswith(" avg"):
        types[entity_type] = {
          "precision": percent(scores["precision"]),
          "recall": percent(scores["recall"]),
          "f1": percent(scores["f1-score"]),
          "entities": int(scores["support"]),
        }
    return {"entities": int(rows_NC[:, 2].sum()), "types": types}


def _ratio_or_zero(numerator: int, denominator: int) -> float:
  return percent_of(numerator, denominator) if denominator else 0.0
