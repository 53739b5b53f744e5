"""`c4`: clean web text in the spirit of C4 (Raffel et al. 2020, section 2.2).

It removes citation marks; lines that do not end in terminal punctuation, have few words or an
extremely long word, mention JavaScript or are a policy notice; and pages that have few sentences, a
bad word, placeholder text or a curly brace, or are in another language.
"""

import dataclasses
import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from t5x_like import segmentation, trust
from t5x_like.corpora.cleaning import CleanResult, Filter
from t5x_like.errors import UserError

QUOTES = ('"', "\u201d")  # quotes that end a line without a terminator before them

_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")  # as in Wikipedia
_POLICY = (
  "terms of use",
  "privacy policy",
  "cookie policy",
  "uses cookies",
  "use of cookies",
  "use cookies",
)
_LONGEST_WORD = 1000  # characters


@dataclasses.dataclass(frozen=True)
class Step(Filter):
  """The filters of one page.

  The numbers are from the paper, the citation marks and policy phrases from its code.

  Attributes:
    min_words: minimum words per line.
    min_sentences: minimum sentences per page.
    bad_words: words in lower case; pages with one of them are removed.
    language_id: `module:function` of a function that returns the language of a text; empty for no
      language filter.
    language: language of the pages to keep.

  Raises:
    UserError: the function `language_id` cannot be imported; see `load_language_id`.
  """

  stage = 0
  edition = 2  # edition 1 removed lines that end with a closing bracket or other quotes, as 」
  min_words: int = 5
  min_sentences: int = 3
  bad_words: tuple[str, ...] = ()
  language_id: str = ""
  language: str = "en"

  def __post_init__(self):
    if self.language_id:
      load_language_id(self.language_id)

  def __setstate__(self, state: dict[str, Any]) -> None:
    """Unpickle the filters in a worker process, and admit the language identifier's name there.

    The command has checked the name against its flags, which the worker does not have.
    """
    vars(self).update(state)
    trust.admit(self.language_id)

  def clean(self, text: str) -> CleanResult:
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
      reason = self._line_refusal(line)
      if reason:
        counts[f"line: {reason}"] += 1
      else:
        lines.append(line)
    page = "\n".join(lines)
    reason = self._page_refusal(page)
    return None if reason else page, reason, counts

  def is_long_enough(self, text: str) -> bool:
    """Return whether a text has at least `min_sentences`."""
    first_sentences = itertools.islice(segmentation.sentences(text), self.min_sentences)
    return len(list(first_sentences)) >= self.min_sentences

  def _line_refusal(self, line: str) -> str | None:
    """Return why a line is removed, None if it stays."""
    words = segmentation.words(line)
    if len(line) > _LONGEST_WORD and max(len(word) for word in words) > _LONGEST_WORD:
      return f"word of over {_LONGEST_WORD} characters"
    is_ended = line.endswith(QUOTES) or segmentation.ends_sentence(line)
    if not is_ended or line.endswith(("...", "\u2026")):
      return "no terminal punctuation"
    if len(words) < self.min_words:
      return f"under {self.min_words} words"
    lower = line.lower()
    if "javascript" in lower:
      return "javascript"
    return "policy" if any(phrase in lower for phrase in _POLICY) else None

  def _page_refusal(self, page: str) -> str | None:
    """Return why a page is removed, None if it stays."""
    lower = page.lower()
    if "lorem ipsum" in lower:
      return "lorem ipsum"
    if "{" in page:
      return "curly brace"
    if not self.is_long_enough(page):
      return f"under {self.min_sentences} sentences"
    if self.bad_words and _compile_any(self.bad_words).search(lower):
      return "word of the list"
    if self.language_id and load_language_id(self.language_id)(page) != self.language:
      return f"not in {self.language}"
    return None


@functools.lru_cache(4)
def _compile_any(words: tuple[str, ...]) -> re.Pattern:
  """Return a pattern that matches any of the words.

  In scripts that separate words, a match begins and ends at word boundaries.
  """
  patterns = []
  spaced = []
  for word in words:
    if segmentation.has_unspaced(word):
      patterns.append(re.escape(word))
    else:
      spaced.append(re.escape(word))
  if spaced:
    patterns.append(rf"(?<!\w)(?:{'|'.join(spaced)})(?!\w)")
  return re.compile("|".join(patterns))


@functools.cache
def load_language_id(name: str) -> Callable[[str], str]:
  """Import the function at `module:function`; raise UserError if it is missing or not admitted."""
  function = trust.import_function("language id", name)
  if not callable(function):
    raise UserError(
      f"language id {name!r}: found {type(function).__name__}, expected a function "
      "from text to a language"
    )
  return function
