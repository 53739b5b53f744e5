"""`spans`: of three consecutive sentences that occur more than once, except for case and spaces,
the first stay.

The others are removed from their pages.
"""

import dataclasses
from collections import Counter

import numpy as np

from t5x_like.corpora.cleaning import CleanResult, Comparison
from t5x_like.corpora.cleaning._repeats import Repeats, first_places, hash_text, mark_repeats
from t5x_like.segmentation import sentences

SPAN = 3  # sentences


@dataclasses.dataclass(frozen=True)
class Step(Repeats):
  stage = 3
  edition = 1  # the first knew no sentence ends but . ! ?
  comparisons = (Comparison("spans", first_places, mark_repeats),)
  removes_pages = False

  def sign(self, text: str) -> np.ndarray:
    normal = [" ".join(sentence.lower().split()) for sentence in sentences(text)]
    spans = max(0, len(normal) - SPAN + 1)
    return np.fromiter(
      (hash_text("\n".join(normal[i : i + SPAN])) for i in range(spans)), np.uint64, spans
    )

  def remove_marked(self, text: str, marked_n: np.ndarray) -> CleanResult:
    gone = {start + i for start in np.flatnonzero(marked_n).tolist() for i in range(SPAN)}
    left = "".join(
      sentence for number, sentence in enumerate(sentences(text)) if number not in gone
    ).strip()
    return left, None, Counter({"span: repeated": int(marked_n.sum())})
