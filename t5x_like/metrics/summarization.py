"""ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum, by rouge-score."""

from collections.abc import Sequence

import numpy as np

from t5x_like.metrics.metric import Metric, percent

_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def split_sentences(summary: str) -> str:
  """Start a new line after each " . ", as T5 does for ROUGE-Lsum, which treats lines as sentences."""
  return summary.replace(" . ", " .\n")


class Rouge(Metric):
  """F-measures, averaged over examples. ROUGE-Lsum treats lines as sentences, so `split_sentences` is applied to both
  sides, as in T5.

  Args:
    use_stemmer: whether to use Porter's stemmer, as ROUGE-1.5.5 with `-m` in most papers; T5 does not.
    one_reference: whether of several references the one with the highest ROUGE-1 counts, as in SciTLDR's `evaluate.py`;
      otherwise each type of ROUGE takes its highest (rouge-score's `score_multi`).
  """

  names = _TYPES

  def __init__(self, use_stemmer: bool = True, one_reference: bool = False):
    from rouge_score.rouge_scorer import RougeScorer

    self._scorer, self._one = RougeScorer(_TYPES, use_stemmer=use_stemmer), one_reference

  def rows(self, references: Sequence[Sequence[str]], predictions: Sequence[str]) -> np.ndarray:
    rows = []
    for several, prediction in zip(references, predictions):
      predicted = split_sentences(prediction)
      found = [self._scorer.score(split_sentences(one), predicted) for one in several]
      found_RT = [[scores[name].fmeasure for name in _TYPES] for scores in found]
      rows.append(max(found_RT, key=lambda scores: scores[0]) if self._one else np.max(found_RT, axis=0))
    return np.array(rows, np.float64)

  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    return {name: percent(mean) for name, mean in zip(_TYPES, rows_NC.mean(0))}
