"""`spans`: of three consecutive sentences that occur more than once, keeps the first occurrence.

Case and spaces do not count. The other occurrences are removed from their pages.
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
    normalized = [" ".join(sentence.lower().split()) for sentence in sentences(text)]
    num_spans = max(0, len(normalized) - SPAN + 1)
    spans = ["\n".join(normalized[i : i + SPAN]) for i in range(num_spans)]
    return np.fromiter(map(hash_text, spans), np.uint64, num_spans)

  def remove_marked(self, text: str, marked_n: np.ndarray) -> CleanResult:
    removed = set()
    for start in np.flatnonzero(marked_n).tolist():
      removed.update(range(start, start + SPAN))
    kept_sentences = []
    for number, sentence in enumerate(sentences(text)):
      if number not in removed:
        kept_sentences.append(sentence)
    page = "".join(kept_sentences).strip()
    return page, None, Counter({"span: repeated": int(marked_n.sum())})
