"""Cleaning of web text in the spirit of C4 (Raffel et al. 2020, section 2.2), and removal of duplicates.

`C4.clean` filters one page: lines that do not end in terminal punctuation, lines of few words and lines that speak of
JavaScript go; pages of few sentences, with a word of the list, placeholder text, a curly brace or in another language
go. Duplicates are found over a whole corpus in two steps, so that the work between them can be spread: `signature` of
every page, then `duplicates` of all signatures in the order of the corpus, the first of equals being kept:

- exact: pages with the same text but for case and spaces;
- near: pages whose sets of five-word shingles have a Jaccard similarity of about 0.8 and more (MinHash, Broder 1997);
- spans: of every three sentences in a row that occur more than once, all but the first are cut out of their pages.

Everything here is a pure function of texts; t5x_like/data/beam.py has the same as Beam transforms.
"""

import dataclasses
import functools
import hashlib
import importlib
import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from t5x_like.errors import UserError, one_line

ENDINGS = (".", "!", "?", '"', "\u201d")
STEPS = ("c4", "exact", "near", "spans")
SPAN = 3  # sentences
SHINGLE = 5  # words
HASHES, BANDS = 128, 16  # 16 bands of 8: a pair of similarity 0.8 shares a band with probability 0.95, one of 0.5 0.06
SIMILAR = 0.8

_SENTENCE_END = re.compile(r"(?<=[.!?])[\"'\u201d\u2019)]*(?:\s+|$)")
_WORD = re.compile(r"\w+")


@dataclasses.dataclass(frozen=True)
class C4:
  """The filters of one page; the numbers are the paper's.

  Attributes:
    min_words: a line has at least so many words.
    min_sentences: a page has at least so many sentences.
    bad_words: a page with one of these words goes; lower case.
    language_id: `module:function` of a function from text to a language's name, or none.
    language: the language kept.
  """

  min_words: int = 5
  min_sentences: int = 3
  bad_words: tuple[str, ...] = ()
  language_id: str = ""
  language: str = "en"

  def clean(self, text: str) -> tuple[str | None, Counter]:
    """The page without the lines that go, or None, and how many lines and pages went for which reason."""
    counts: Counter[str] = Counter()
    lines = []
    for line in text.splitlines():
      line = line.strip()
      reason = self._line(line)
      if reason:
        counts[f"line: {reason}"] += 1
      elif line:
        lines.append(line)
    page = "\n".join(lines)
    if reason := self._page(page):
      counts[reason] += 1
      return None, counts
    return page, counts

  def _line(self, line: str) -> str | None:
    if not line:
      return None
    if not line.endswith(ENDINGS) or line.endswith("..."):
      return "no terminal punctuation"
    if len(line.split()) < self.min_words:
      return f"under {self.min_words} words"
    return "javascript" if "javascript" in line.lower() else None

  def _page(self, page: str) -> str | None:
    lower = page.lower()
    if "lorem ipsum" in lower:
      return "lorem ipsum"
    if "{" in page:
      return "curly brace"
    if len(sentences(page)) < self.min_sentences:
      return f"under {self.min_sentences} sentences"
    if self.bad_words and _any_of(self.bad_words).search(lower):
      return "word of the list"
    if self.language_id and hook(self.language_id)(page) != self.language:
      return f"not in {self.language}"
    return None


@functools.lru_cache(4)
def _any_of(words: tuple[str, ...]) -> re.Pattern:
  return re.compile(r"(?<!\w)(?:" + "|".join(map(re.escape, words)) + r")(?!\w)")


@functools.cache
def hook(name: str) -> Callable[[str], str]:
  """The function at `module:function`; UserError if there is none."""
  module, _, function = name.partition(":")
  try:
    found = getattr(importlib.import_module(module), function)
  except (ImportError, AttributeError, ValueError) as error:
    raise UserError(f"language id {name!r}: cannot be imported ({one_line(error)}), expected module:function"
                    ) from error
  if not callable(found):
    raise UserError(f"language id {name!r}: found {type(found).__name__}, expected a function from text to a language")
  return found


def sentences(text: str) -> list[str]:
  """Sentences of a text, each with the space after it: they end at . ! ? and closing quotes, and at line ends."""
  found = []
  for line in text.splitlines(keepends=True):
    start = 0
    for match in _SENTENCE_END.finditer(line):
      found.append(line[start : match.end()])
      start = match.end()
    if line[start:].strip():
      found.append(line[start:])
  return [sentence for sentence in found if sentence.strip()]


@dataclasses.dataclass(frozen=True)
class Signature:
  """What tells a page from others.

  Attributes:
    exact: uint64 [], of the text but for case and spaces.
    minhash: uint32 [HASHES], or [0] where not asked for.
    spans: uint64 [spans], of each three sentences in a row, or [0].
  """

  exact: np.uint64
  minhash: np.ndarray
  spans: np.ndarray


def signature(text: str, steps: Sequence[str] = STEPS) -> Signature:
  """The signature of a page; only what `steps` need is computed."""
  words = text.lower().split()
  minhash = _minhash(words) if "near" in steps else np.zeros(0, np.uint32)
  spans = _spans(sentences(text)) if "spans" in steps else np.zeros(0, np.uint64)
  return Signature(_hash(" ".join(words)), minhash, spans)


def duplicates(signatures: Sequence[Signature], steps: Sequence[str] = STEPS) -> tuple[np.ndarray, list[np.ndarray]]:
  """Which pages and spans repeat earlier ones.

  Args:
    signatures: of all pages in the order of the corpus.
    steps: of `exact`, `near` and `spans`.

  Returns:
    (uint8 [pages], 0 for kept, 1 for an exact and 2 for a near duplicate; for each page bool [spans], true where an
    earlier page that is kept, or this one, has the same three sentences before).
  """
  dropped = np.zeros(len(signatures), np.uint8)
  if "exact" in steps and signatures:
    _, first, inverse = np.unique([one.exact for one in signatures], return_index=True, return_inverse=True)
    dropped[first[inverse] != np.arange(len(signatures))] = 1
  if "near" in steps:
    _drop_near(signatures, dropped)
  lengths = np.array([one.spans.size for one in signatures], np.int64)
  if "spans" not in steps or not lengths.sum():
    return dropped, [np.zeros(size, bool) for size in lengths]
  spans = np.concatenate([one.spans for one in signatures])
  live = np.flatnonzero(np.repeat(dropped == 0, lengths))
  _, first = np.unique(spans[live], return_index=True)
  repeated = np.ones(spans.size, bool)
  repeated[live[first]] = False
  return dropped, np.split(repeated, np.cumsum(lengths)[:-1])


def without_spans(text: str, repeated: np.ndarray) -> str:
  """The text without the sentences of its repeated spans; bool [spans], as `duplicates` gives them."""
  found = sentences(text)
  gone = {start + i for start in np.flatnonzero(repeated).tolist() for i in range(SPAN)}
  return "".join(sentence for number, sentence in enumerate(found) if number not in gone).strip() if gone else text


def same_bands(minhash: np.ndarray) -> list[bytes]:
  """The keys of a signature's bands: pages that share one are compared."""
  return [bytes([band]) + rows.tobytes() for band, rows in enumerate(minhash.reshape(BANDS, -1))]


def _drop_near(signatures: Sequence[Signature], dropped: np.ndarray) -> None:
  """Marks pages that are like an earlier one that is kept."""
  kept: dict[bytes, list[int]] = {}
  for number, one in enumerate(signatures):
    if dropped[number] or not one.minhash.size:
      continue
    bands = same_bands(one.minhash)
    candidates = sorted({other for band in bands for other in kept.get(band, ())})
    if any(np.mean(signatures[other].minhash == one.minhash) >= SIMILAR for other in candidates):
      dropped[number] = 2
      continue
    for band in bands:
      kept.setdefault(band, []).append(number)


def _hash(text: str) -> np.uint64:
  digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
  return np.uint64(int.from_bytes(digest, "little"))


@functools.cache
def _multipliers() -> tuple[np.ndarray, np.ndarray]:
  generator = np.random.default_rng(20)  # part of what a signature is
  return (generator.integers(1, 2**63, HASHES, dtype=np.uint64) | np.uint64(1),
          generator.integers(0, 2**63, HASHES, dtype=np.uint64))


def _minhash(words: list[str]) -> np.ndarray:
  """The least of 128 hashes over the shingles; of a page shorter than one shingle, over its words as one."""
  shingles = {" ".join(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1))}
  hashed = np.array([_hash(shingle) for shingle in shingles], np.uint64)
  multiply, add = _multipliers()
  least = np.full(HASHES, 2**32 - 1, np.uint32)
  for start in range(0, hashed.size, 1024):
    mixed = hashed[start : start + 1024, None] * multiply + add  # modulo 2^64; the high half is the hash
    least = np.minimum(least, (mixed >> np.uint64(32)).astype(np.uint32).min(axis=0))
  return least


def _spans(found: list[str]) -> np.ndarray:
  normal = [" ".join(_WORD.findall(sentence.lower())) for sentence in found]
  return np.array([_hash("\n".join(normal[i : i + SPAN])) for i in range(len(normal) - SPAN + 1)], np.uint64)
