"""`exact`: of pages with the same text, except for case and spaces, the first stays."""

import dataclasses
from collections import Counter

import numpy as np

from t5x_like.corpora.cleaning import Cleaned, Comparison
from t5x_like.corpora.cleaning._repeats import Repeats, earlier, firsts, hashed


@dataclasses.dataclass(frozen=True)
class Step(Repeats):
  stage = 1
  comparisons = (Comparison("exact", firsts, earlier),)

  def sign(self, text: str) -> np.ndarray:
    return np.array([hashed(" ".join(text.lower().split()))], np.uint64)

  def without(self, text: str, marked_n: np.ndarray) -> Cleaned:
    return None, "exact duplicate", Counter()
