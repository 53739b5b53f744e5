"""Cleaning of web text in the spirit of C4 (Raffel et al. 2020, section 2.2), and removal of duplicates.

`C4.clean` filters one page. It removes citation marks; lines that do not end in terminal punctuation, have few words or
an extremely long word, mention JavaScript or are a policy notice; and pages that have few sentences, a bad word,
placeholder text or a curly brace, or are in another language. Duplicates are found over a whole corpus in two steps, of
which the first can be distributed: `signature` of every page, then `duplicates` of all signatures in the order of the
corpus, keeping the first of equals:

- exact: pages with the same text, except for case and spaces;
- near: pages whose sets of five-word shingles have a Jaccard similarity of about 0.8 or more (MinHash, Broder 1997);
- spans: three consecutive sentences that occur more than once, except for case and spaces; all but the first
  occurrence are removed from their pages.

Everything here is a pure function of texts.
"""

import dataclasses
import functools
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from t5x_like import slots
from t5x_like.errors import UserError

ENDINGS = (".", "!", "?", '"', "\u201d")
STEPS = ("c4", "exact", "near", "spans")
SPAN = 3  # sentences
SHINGLE = 5  # words
HASHES, BANDS = 128, 16  # 16 bands of 8: a pair of similarity 0.8 shares a band with probability 0.95, one of 0.5 0.06
SIMILAR = 0.8

_SENTENCE_END = re.compile(r"(?<=[.!?])[\"'\u201d\u2019)]*(?:\s+|$)")
_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")  # as in Wikipedia
_POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
_LONGEST_WORD = 1000  # characters
_UNSPACED = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff]")  # Thai, Japanese, Chinese: no spaces between words


@dataclasses.dataclass(frozen=True)
class C4:
  """The filters of one page; the numbers are from the paper, the citation marks and policy phrases from its code.

  Attributes:
    min_words: the fewest words of a line.
    min_sentences: the fewest sentences of a page.
    bad_words: lower case; a page with one of these words is removed.
    language_id: `module:function` of a function from text to a language's name; empty for no language filter.
    language: the language to keep.
  """

  min_words: int = 5
  min_sentences: int = 3
  bad_words: tuple[str, ...] = ()
  language_id: str = ""
  language: str = "en"

  def clean(self, text: str) -> tuple[str | None, str | None, Counter]:
    """(the cleaned page, or None if removed; why it was removed, or None; how much was removed from it by reason)."""
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
    """Whether a text has `min_sentences`."""
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
  """The function at `module:function`; UserError if there is none."""
  found = slots.outside("language id", name)
  if not callable(found):
    raise UserError(f"language id {name!r}: found {type(found).__name__}, expected a function from text to a language")
  return found


def sentences(text: str) -> list[str]:
  """Sentences of a text, each with the space after it; they end at . ! ? and closing quotes, and at line ends."""
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


@dataclasses.dataclass(frozen=True)
class Signature:
  """Hashes by which a page is compared with others.

  Attributes:
    exact: uint64 [], of the text without case and spaces; 0 if not computed.
    minhash: uint32 [HASHES]; empty if not computed.
    spans: uint64 [spans], of every three consecutive sentences; empty if not computed.
  """

  exact: np.uint64
  minhash: np.ndarray
  spans: np.ndarray


@dataclasses.dataclass(frozen=True)
class Signatures:
  """The signatures of D pages; the spans of all pages are concatenated, S in all.

  Attributes:
    exact: uint64 [D].
    minhash: uint32 [D, HASHES], or [D, 0].
    spans: uint64 [S].
    lengths: int64 [D], the number of spans of each page.
  """

  exact: np.ndarray
  minhash: np.ndarray
  spans: np.ndarray
  lengths: np.ndarray

  @classmethod
  def of(cls, pages: Sequence[Signature]) -> "Signatures":
    if not pages:
      return cls(np.zeros(0, np.uint64), np.zeros((0, 0), np.uint32), np.zeros(0, np.uint64), np.zeros(0, np.int64))
    return cls(
      np.array([page.exact for page in pages], np.uint64),
      np.stack([page.minhash for page in pages]),
      np.concatenate([page.spans for page in pages]),
      np.array([page.spans.size for page in pages], np.int64),
    )


def signature(text: str, steps: Sequence[str] = STEPS) -> Signature:
  """The signature of a page; only what `steps` need is computed."""
  words = text.lower().split() if {"exact", "near"} & set(steps) else []
  exact = np.uint64(_hash(" ".join(words)) if "exact" in steps else 0)
  minhash = _minhash(words) if "near" in steps else np.zeros(0, np.uint32)
  spans = _spans(sentences(text)) if "spans" in steps else np.zeros(0, np.uint64)
  return Signature(exact, minhash, spans)


def duplicates(parts: Sequence[Signatures], steps: Sequence[str] = STEPS) -> tuple[np.ndarray, np.ndarray]:
  """Which pages and spans repeat earlier ones.

  Args:
    parts: signatures of all D pages, in the order of the corpus.
    steps: of `exact`, `near` and `spans`.

  Returns:
    (uint8 [D]: 0 for kept, 1 for an exact and 2 for a near duplicate; bool [S]: true where the same three sentences
    occur earlier in this page or in a kept one).
  """
  dropped = np.zeros(sum(part.exact.size for part in parts), np.uint8)
  if "exact" in steps and dropped.size:
    exact = np.concatenate([part.exact for part in parts])
    dropped[_repeats(exact)] = 1
  if "near" in steps and dropped.size:
    _drop_near(parts, dropped)
  repeated = np.ones(sum(part.spans.size for part in parts), bool)
  if "spans" not in steps or not repeated.size:
    return dropped, np.zeros(repeated.size, bool)
  live = np.flatnonzero(np.repeat(dropped == 0, np.concatenate([part.lengths for part in parts])))
  repeated[live] = _repeats(np.concatenate([part.spans for part in parts])[live])
  return dropped, repeated


def _repeats(keys_N: np.ndarray) -> np.ndarray:
  """Whether a key has occurred before: bool [N]."""
  order_N = np.argsort(keys_N, kind="stable")
  sorted_N = keys_N[order_N]
  repeats_N = np.zeros(keys_N.size, bool)
  repeats_N[order_N[1:]] = sorted_N[1:] == sorted_N[:-1]
  return repeats_N


def without_spans(text: str, repeated: np.ndarray) -> str:
  """The text without the sentences of its repeated spans; bool [spans], as `duplicates` gives them."""
  found = sentences(text)
  gone = {start + i for start in np.flatnonzero(repeated).tolist() for i in range(SPAN)}
  return "".join(sentence for number, sentence in enumerate(found) if number not in gone).strip() if gone else text


def same_bands(minhash: np.ndarray) -> np.ndarray:
  """Band keys of MinHash signatures: uint32 [..., HASHES] -> uint64 [..., BANDS]. Pages that share one are compared."""
  rows = minhash.reshape(*minhash.shape[:-1], BANDS, HASHES // BANDS).astype(np.uint64)
  key = np.broadcast_to(np.arange(BANDS, dtype=np.uint64), rows.shape[:-1])
  for row in range(rows.shape[-1]):
    key = _mix(key ^ rows[..., row])
  return key


def _drop_near(parts: Sequence[Signatures], dropped: np.ndarray) -> None:
  """Marks pages similar to an earlier kept one; only pages that share a band are compared."""
  bands = np.concatenate([same_bands(part.minhash) for part in parts])
  live = np.flatnonzero(dropped == 0)
  shared = np.zeros(live.size, bool)
  for band in range(BANDS):
    keys = bands[live, band]
    repeats = _repeats(keys)
    shared |= np.isin(keys, keys[repeats]) if repeats.any() else False
  numbers = live[shared]
  starts = np.cumsum([0, *(part.exact.size for part in parts)])
  kept: dict[int, list[np.ndarray]] = {}
  for part, start in zip(parts, starts):
    for number in numbers[np.searchsorted(numbers, start) : np.searchsorted(numbers, start + part.exact.size)].tolist():
      minhash = part.minhash[number - start].copy()  # a copy, so that parts read on demand are not kept in memory
      keys = bands[number].tolist()
      others = {id(other): other for key in keys for other in kept.get(key, ())}
      if others and np.mean(np.stack(list(others.values())) == minhash, axis=1).max() >= SIMILAR:
        dropped[number] = 2
        continue
      for key in keys:
        kept.setdefault(key, []).append(minhash)


def _hash(text: str) -> int:
  """64 bits of BLAKE2b."""
  return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


_word_hash = functools.lru_cache(2**17)(_hash)  # most words recur


def _mix(x: np.ndarray) -> np.ndarray:
  """SplitMix64's finaliser (Steele et al. 2014): uint64 to uint64."""
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))


@functools.cache
def _multipliers() -> tuple[np.ndarray, np.ndarray]:
  generator = np.random.default_rng(20)  # part of the definition of a signature
  return (
    generator.integers(0, 2**32, HASHES, dtype=np.uint32) | np.uint32(1),
    generator.integers(0, 2**32, HASHES, dtype=np.uint32),
  )


def _minhash(words: list[str]) -> np.ndarray:
  """The minimum of each of 128 hashes over the shingles; a page shorter than one shingle is padded to one."""
  hashed = np.fromiter(map(_word_hash, words), np.uint64, len(words))
  hashed = np.pad(hashed, (0, max(0, SHINGLE - hashed.size)))
  shingles = np.zeros(hashed.size - SHINGLE + 1, np.uint64)
  for place in range(SHINGLE):
    shingles = _mix(shingles ^ hashed[place : place + shingles.size])
  high = (shingles >> np.uint64(32)).astype(np.uint32)
  multiply, add = _multipliers()
  least = np.full(HASHES, 2**32 - 1, np.uint32)
  for start in range(0, high.size, 512):  # fits in a core's cache
    mixed = high[start : start + 512, None] * multiply  # modulo 2^32
    mixed += add
    np.minimum(least, mixed.min(axis=0), out=least)
  return least


def _spans(found: list[str]) -> np.ndarray:
  normal = [" ".join(sentence.lower().split()) for sentence in found]
  spans = max(0, len(normal) - SPAN + 1)
  return np.fromiter((_hash("\n".join(normal[i : i + SPAN])) for i in range(spans)), np.uint64, spans)
