"""Dates, numbers and names in text, and its sentences, by rules without dependencies.

The expression matches months, years, numbers, and runs of capitalised words that do not begin a
sentence or that follow a title ("Mr. Darcy"). It therefore needs no tagger, but fails for languages
that capitalise nouns. Spaces before punctuation are allowed in dates and titles but not inside
numbers ("330 . 5" is two).
"""

import re
import sys

from t5x_like import segmentation

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
_UPPER = "[" + "".join(filter(str.isupper, map(chr, range(sys.maxunicode)))) + "]"
_CAPITAL = rf"(?!I\b)(?:(?:[A-Z]\.){{2,}}|{_UPPER}[^\W\d_]*(?:[-'\u2019][^\W\d_]+)*)"
_NAMES = rf"{_CAPITAL}(?:\s(?:of\s|the\s|de\s|von\s)?{_CAPITAL})*"
_TITLED = rf"(?:Mr|Mrs|Ms|Dr|Prof|Rev|St|Capt|Col|Gen|Lt|Sgt)\s?\.\s{_NAMES}"
_INSIDE = rf"(?<![.!?]\s)(?<![.!?][\"')\u201d]\s)(?<=[\w,;:]\s){_NAMES}"
_SALIENT = re.compile(rf"(?<!\w)(?:{_DATE}|{_NUMBER}|{_TITLED}|{_INSIDE})(?!\w)")
_ABBREVIATED = re.compile(
  r"(?<!\w)(?:[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|Rev|St|Capt|Col|Gen|Lt|Sgt|vs|etc|No)"
  r"\.[\"')\]\u2019\u201d]*\s*$"
)
_LONGEST_ABBREVIATION = 16  # characters, with the quotes, brackets and spaces around it


def dates_numbers_and_names(text: str) -> list[tuple[int, int]]:
  """Find dates, numbers and names: disjoint spans of characters, from left to right."""
  return [match.span() for match in _SALIENT.finditer(text)]


def sentences(text: str) -> list[str]:
  """Cut a text at line ends and where sentences of any script end (`segmentation`).

  Titles and initials do not end a sentence.
  """
  pieces = []
  for line in text.splitlines():
    begin = 0
    for end in segmentation.sentence_ends(line, 0, len(line)):
      if not _ABBREVIATED.search(line, max(begin, end - _LONGEST_ABBREVIATION), end):
        pieces.append(line[begin:end])
        begin = end
    pieces.append(line[begin:])
  return [sentence.strip() for sentence in pieces if sentence.strip()]
