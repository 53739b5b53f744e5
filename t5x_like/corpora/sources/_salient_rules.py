"""Dates, numbers and names in text, and its sentences, by expressions without dependencies.

The expression matches months, years, numbers, and runs of capitalised words that do not begin a
sentence or that follow a title ("Mr. Darcy"). It therefore needs no tagger, but fails for languages
that capitalise nouns. Spaces before punctuation are allowed in dates and titles but not inside
numbers ("330 . 5" is two).
"""

import re
import sys

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
_END = re.compile(r"[.!?][.!?\"')\]\u2019\u201d]*+")  # a whole run, so that each is tried once
_ABBREVIATED = re.compile(
  r"(?<!\w)(?:[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|Rev|St|Capt|Col|Gen|Lt|Sgt|vs|etc|No)\.$"
)


def dates_numbers_and_names(text: str) -> list[tuple[int, int]]:
  """Find dates, numbers and names: disjoint spans of characters, from left to right."""
  return [match.span() for match in _SALIENT.finditer(text)]


def sentences(text: str) -> list[str]:
  """Cut a text at line ends, and after full stops, question and exclamation marks.

  Titles and initials do not end a sentence.
  """
  pieces = []
  for line in text.splitlines():
    begin = 0
    for match in _END.finditer(line):
      if not line[match.end() : match.end() + 1].isspace():
        continue
      if not _ABBREVIATED.search(line, begin, match.start() + 1):
        pieces.append(line[begin : match.end()])
        begin = match.end()
    pieces.append(line[begin:])
  return [sentence.strip() for sentence in pieces if sentence.strip()]
