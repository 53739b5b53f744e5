"""Salient spans: dates, numbers and names in text, matched without dependencies, and the tokens they cover.

Guu et al. 2020 (REALM, section 3.4) mask dates and named entities, located by a tagger and a regular expression;
Roberts et al. 2020 (section 3.3) continue pretraining T5 this way. A finder is a function `(text) -> list of (start,
end)` in characters, named `module:function`; the default is `dates_numbers_and_names`. It matches months, years,
numbers, and runs of capitalised words that do not begin a sentence or that follow a title ("Mr. Darcy"). It therefore
needs no tagger, but fails for languages that capitalise nouns. Spaces before punctuation, as in text decoded by
WordPiece, are allowed in dates and titles but not inside numbers ("330 . 5" is two).
"""

import re

import numpy as np

from t5x_like.data.preprocessors.spellings import spellings
from t5x_like.vocabularies import Vocabulary

DEFAULT_FINDER = "t5x_like.data.preprocessors.salient_spans:dates_numbers_and_names"

_MONTH = (
  "(?:January|February|March|April|May|June|July|August|September|October|November|December|"
  r"(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\.)"
)
_YEAR = r"(?:\s?,?\s+\d{4})"
_DATE = (
  rf"\d{{1,2}}(?:st|nd|rd|th)?\s+(?:of\s+)?{_MONTH}{_YEAR}?|{_MONTH}\s+\d{{1,2}}(?:st|nd|rd|th)?{_YEAR}?|"
  rf"{_MONTH}{_YEAR}|\d{{4}}-\d{{2}}-\d{{2}}|\d{{1,2}}/\d{{1,2}}/\d{{2,4}}"
)
_NUMBER = r"\d+(?:[.,]\d+)*"
_CAPITAL = r"(?!I\b)(?:(?:[A-Z]\.){2,}|[^\W\d_a-z][^\W\d_]*(?:[-'\u2019][^\W\d_]+)*)"
_NAMES = rf"{_CAPITAL}(?:\s(?:of\s|the\s|de\s|von\s)?{_CAPITAL})*"
_TITLED = rf"(?:Mr|Mrs|Ms|Dr|Prof|Rev|St|Capt|Col|Gen|Lt|Sgt)\s?\.\s{_NAMES}"
_INSIDE = rf"(?<![.!?]\s)(?<![.!?][\"')\u201d]\s)(?<=[\w,;:]\s){_NAMES}"
_SALIENT = re.compile(rf"(?<!\w)(?:{_DATE}|{_NUMBER}|{_TITLED}|{_INSIDE})(?!\w)")


def dates_numbers_and_names(text: str) -> list[tuple[int, int]]:
  """Find dates, numbers and names: disjoint spans of characters, from left to right."""
  return [match.span() for match in _SALIENT.finditer(text)]


class TokenSpans:
  """A finder that works on tokens.

  Args:
    vocabulary: vocabulary of the ids; an id's text is its spelling after a word.
    finder: `(text) -> list of (start, end)`.
    most: maximum tokens per span; longer spans are ignored.
  """

  def __init__(self, vocabulary: Vocabulary, finder, most: int):
    self._finder, self._most = finder, most
    self._spellings = np.array(spellings(vocabulary), object)
    self._lengths = np.array([len(spelling) for spelling in self._spellings], np.int64)

  def __call__(self, tokens_BW: np.ndarray, bits_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draw a span from each row: int32 [B, W], uint32 [B] -> (starts, ends), int32 [B]; 0, 0 if the row has none."""
    found = np.zeros((2, len(tokens_BW)), np.int32)
    ends_BW = np.cumsum(self._lengths[tokens_BW], axis=1)
    for row, texts_W in enumerate(self._spellings[tokens_BW]):
      spans = np.array(self._finder("".join(texts_W)), np.int64).reshape(-1, 2)
      # The tokens with the first and the last character of each span; a word's token includes the space before it.
      first = np.searchsorted(ends_BW[row], spans[:, 0], side="right")
      last = np.searchsorted(ends_BW[row], spans[:, 1] - 1, side="right") + 1
      short = np.flatnonzero(last - first <= self._most)
      if short.size:
        one = short[int(bits_B[row]) * short.size >> 32]
        found[:, row] = first[one], last[one]
    return found[0], found[1]
