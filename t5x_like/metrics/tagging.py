"""Scores of tag sequences: token accuracy, and entity F1 by seqeval."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from t5x_like.metrics.metric import Metric, percent, ratio


class TagAccuracy(Metric):
  """The share of tokens whose tag is right; examples are sentences, each a sequence of tags."""

  names = ("accuracy",)

  def rows(
    self, references: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
  ) -> np.ndarray:
    pairs = list(zip(references, predictions))
    return np.array(
      [(sum(g == p for g, p in zip(*pair)), len(pair[0])) for pair in pairs], np.int64
    )

  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    right, tokens = rows_NC.sum(0)
    return {"accuracy": ratio(right, tokens)}

  def details(self, rows_NC: np.ndarray, references, predictions) -> dict[str, Any]:
    return {"tokens": int(rows_NC[:, 1].sum())}


class EntityF1(Metric):
  """Precision, recall and F1 of entities, micro-averaged as in conlleval; `details` has them by
  type.

  seqeval extracts the entities from BIO (or BIOES) tags in its default mode, which is conlleval's:
  an I- without its B- begins an entity. An entity is right if its type and both its ends are right.
  A word without a tag is outside of all.
  """

  names = ("precision", "recall", "f1")

  def rows(
    self, references: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
  ) -> np.ndarray:
    """Return [N, 3]: the numbers of right, predicted and true entities of each sentence."""
    from seqeval.metrics.sequence_labeling import get_entities

    found = [
      [set(get_entities([tag or "O" for tag in tags])) for tags in side]
      for side in (references, predictions)
    ]
    pairs = list(zip(*found))
    return np.array([(len(gold & given), len(given), len(gold)) for gold, given in pairs], np.int64)

  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    """Return the scores; a score with a denominator of 0 is 0, as in seqeval."""
    right, predicted, true = rows_NC.sum(0).tolist()
    return {
      "precision": ratio(right, predicted) if predicted else 0.0,
      "recall": ratio(right, true) if true else 0.0,
      "f1": ratio(2 * right, predicted + true) if predicted + true else 0.0,
    }

  def details(self, rows_NC: np.ndarray, references, predictions) -> dict[str, Any]:
    from seqeval.metrics import classification_report

    if not rows_NC[:, 1:].any():
      return {"entities": 0}
    gold, given = [list(map(list, side)) for side in (references, predictions)]
    report = classification_report(gold, given, output_dict=True, zero_division=0)
    types = {
      kind: {
        "precision": percent(part["precision"]),
        "recall": percent(part["recall"]),
        "f1": percent(part["f1-score"]),
        "entities": int(part["support"]),
      }
      for kind, part in report.items()
      if not kind.endswith(" avg")
    }
    return {"entities": int(rows_NC[:, 2].sum()), "types": types}
