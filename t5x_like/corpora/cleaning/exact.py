"""`exact`: keep the first of pages whose texts differ at most in case and spaces."""

import dataclasses
from collections import Counter

import numpy as np

from t5x_like.corpora.cleaning import CleanResult, Comparison
from t5x_like.corpora.cleaning._repeats import Repeats, first_positions, hash_text, mark_repeats


@dataclasses.dataclass(frozen=True)
class Step(Repeats):
  """The cleaning step `exact`, whose signature is the hash of a page."""

  stage = 1
  comparisons = (Comparison("exact", first_positions, mark_repeats),)

  def sign(self, text: str) -> np.ndarray:
    return np.array([hash_text(" ".join(text.lower().split()))], np.uint64)

  def remove_marked(self, text: str, marked_n: np.ndarray) -> CleanResult:
    return None, "exact duplicate", Counter()
