"""Cleaning of web text in the spirit of C4 (Raffel et al. 2020, section 2.2), as pure functions of one page.

`C4.clean` removes citation marks; lines that do not end in terminal punctuation, have few words or an extremely long
word, mention JavaScript or are a policy notice; and pages that have few sentences, a bad word, placeholder text or a
curly brace, or are in another language. `without_spans` removes sentences that `duplicates.py` marked as repeated.
"""

import dataclasses
import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from t5x_like import trust
from t5x_like.errors import UserError

ENDINGS = (".", "!", "?", '"', "\u201d")
STEPS = ("c4", "exact", "near", "spans")
SPAN = 3  # sentences

_SENTENCE_END = re.compile(r"(?<=[.!?])[\"'\u201d\u2019)]*(?:\s+|$)")
_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")  # as in Wikipedia
_POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
_LONGEST_WORD = 1000  # characters
_UNSPACED = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff]")  # Thai, Japanese, Chinese: no spaces between words


@dataclasses.dataclass(frozen=True)
class C4:
  """The filters of one page; the numbers are from the paper, the citation marks and policy phrases from its code.

  Attributes:
    min_words: minimum words per line.
    min_sentences: minimum sentences per page.
    bad_words: words in lower case; a page with one of them is removed.
    language_id: `module:function` of a function from text to a language's name; empty for no language filter.
    language: the language to keep.

  Raises:
    UserError: as in `hook`.
  """

  min_words: int = 5
  min_sentences: int = 3
  bad_words: tuple[str, ...] = ()
  language_id: str = ""
  language: str = "en"

  def __post_init__(self):
    if self.language_id:
      hook(self.language_id)

  def __setstate__(self, state: dict[str, Any]) -> None:
    """Unpickle the filters in a worker. The command has checked them; the worker lacks the flags that admit names."""
    vars(self).update(state)
    trust.admit(self.language_id)

  def clean(self, text: str) -> tuple[str | None, str | None, Counter]:
    """Clean a page: (the page, or None if removed; the reason for removal, or None; amounts removed, by reason)."""
    counts: Counter[str] = Counter()
    lines = []
    for line in text.splitlines():
      line = line.strip()
      if "[" in line:
        line, marks = _CITATION.subn("", line)
        if marks:
          counts["citation"] += marks
          line = line.strip()
      if not line:
        continue
      if reason := self._line(line):
        counts[f"line: {reason}"] += 1
      else:
        lines.append(line)
    page = "\n".join(lines)
    reason = self._page(page)
    return None if reason else page, reason, counts

  def long_enough(self, text: str) -> bool:
    """Return whether a text has at least `min_sentences`."""
    return sum(1 for _ in itertools.islice(_sentences(text), self.min_sentences)) >= self.min_sentences

  def _line(self, line: str) -> str | None:
    words = line.split()
    if len(line) > _LONGEST_WORD and max(map(len, words)) > _LONGEST_WORD:
      return f"word of over {_LONGEST_WORD} characters"
    if not line.endswith(ENDINGS) or line.endswith("..."):
      return "no terminal punctuation"
    if len(words) < self.min_words:
      return f"under {self.min_words} words"
    lower = line.lower()
    if "javascript" in lower:
      return "javascript"
    return "policy" if any(phrase in lower for phrase in _POLICY) else None

  def _page(self, page: str) -> str | None:
    lower = page.lower()
    if "lorem ipsum" in lower:
      return "lorem ipsum"
    if "{" in page:
      return "curly brace"
    if not self.long_enough(page):
      return f"under {self.min_sentences} sentences"
    if self.bad_words and _any_of(self.bad_words).search(lower):
      return "word of the list"
    if self.language_id and hook(self.language_id)(page) != self.language:
      return f"not in {self.language}"
    return None


@functools.lru_cache(4)
def _any_of(words: tuple[str, ...]) -> re.Pattern:
  inside = [re.escape(word) for word in words if _UNSPACED.search(word)]
  apart = "|".join(re.escape(word) for word in words if not _UNSPACED.search(word))
  return re.compile("|".join([*inside, *([rf"(?<!\w)(?:{apart})(?!\w)"] if apart else [])]))


@functools.cache
def hook(name: str) -> Callable[[str], str]:
  """Import the function at `module:function`; raise UserError if it is missing or not admitted."""
  found = trust.function("language id", name)
  if not callable(found):
    raise UserError(f"language id {name!r}: found {type(found).__name__}, expected a function from text to a language")
  return found


def sentences(text: str) -> list[str]:
  """Split a text into sentences with the space after each; they end at . ! ? and closing quotes, and at line ends."""
  return list(_sentences(text))


def _sentences(text: str) -> Iterator[str]:
  for line in text.splitlines(keepends=True):
    start = 0
    for match in _SENTENCE_END.finditer(line):
      if not (sentence := line[start : match.end()]).isspace():
        yield sentence
      start = match.end()
    if line[start:].strip():
      yield line[start:]


def without_spans(text: str, repeated: np.ndarray) -> str:
  """Remove the sentences of repeated spans from a text; `repeated` is bool [spans]."""
  found = sentences(text)
  gone = {start + i for start in np.flatnonzero(repeated).tolist() for i in range(SPAN)}
  return "".join(sentence for number, sentence in enumerate(found) if number not in gone).strip() if gone else text
