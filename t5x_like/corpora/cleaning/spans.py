"""`spans`: keep only the first occurrence of repeated spans of three consecutive sentences.

Spans are equal if they differ only in case and white space. The later occurrences are removed from
their pages; the rest of a page stays.
"""

import dataclasses
from collections import Counter

import numpy as np

from t5x_like.corpora.cleaning import CleanResult, Comparison
from t5x_like.corpora.cleaning._repeats import Repeats, first_positions, hash_text, mark_repeats
from t5x_like.segmentation import sentences

SPAN = 3  # sentences in a span


@dataclasses.dataclass(frozen=True)
class Step(Repeats):
  """The cleaning step `spans`, whose signatures are the hashes of a page's spans."""

  stage = 3
  edition = 1  # edition 0 ended sentences only at . ! ?
  comparisons = (Comparison("spans", first_positions, mark_repeats),)
  removes_pages = False

  def sign(self, text: str) -> np.ndarray:
    normalized = [" ".join(sentence.lower().split()) for sentence in sentences(text)]
    hashes = []
    for start in range(len(normalized) - SPAN + 1):
      span = "\n".join(normalized[start : start + SPAN])
      hashes.append(hash_text(span))
    return np.array(hashes, np.uint64)

  def remove_marked(self, text: str, marked_n: np.ndarray) -> CleanResult:
    removed_numbers = set()
    for start in np.flatnonzero(marked_n).tolist():
      removed_numbers.update(range(start, start + SPAN))
    kept_sentences = []
    for number, sentence in enumerate(sentences(text)):
      if number not in removed_numbers:
        kept_sentences.append(sentence)
    page = "".join(kept_sentences).strip()
    amounts = Counter({"span: repeated": int(marked_n.sum())})
    return page, None, amounts
