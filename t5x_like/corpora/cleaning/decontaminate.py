"""`decontaminate`: remove pages that share 13 words in a row with a text of an evaluation set.

The method follows Brown et al. 2020, appendix C, but removes the page instead of 200 characters on
each side. Words are in lower case without punctuation. An evaluation text of 8 to 12 words must
occur as a whole; shorter texts are ignored, as they occur by chance. Spellings that are equal under
Unicode's NFKC_Casefold count as one. In texts written mostly in scripts without spaces between
words, two letters count as a word.
"""

import dataclasses
import functools
import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from t5x_like import segmentation
from t5x_like.corpora.cleaning import CleanResult, Filter
from t5x_like.corpora.cleaning._repeats import hash_text
from t5x_like.corpora.sources._compression import DAMAGED, open_plain, without_suffix
from t5x_like.errors import UserError
from t5x_like.files import globs

WORDS = 13  # words of an n-gram
MIN_WORDS = 8  # words of the shortest evaluation text that counts
# invisible characters: soft hyphens, joiners, …
_IGNORED = re.compile("[\u00ad\u034f\u061c\u200b-\u200f\u2060-\u2064\ufe00-\ufe0f\ufeff]")
_BASE = np.uint64(0x9E3779B97F4A7C15)  # base of the polynomial hash of n-grams


@dataclasses.dataclass(frozen=True)
class Step(Filter):
  """The filter of pages that contain an evaluation text.

  Attributes:
    against: files of evaluation texts, or patterns of their names, compressed or not. Every string
      of JSON and JSONL is a text; in other files, every tab-separated column of a line.
    sha256: checksum of the texts, by which a changed file gives another corpus; computed if empty.

  Raises:
    UserError: there is no file, a file cannot be read, or the texts do not match the checksum.
  """

  stage = 0.5  # after the other filters, before duplicates
  edition = 3
  against: tuple[str, ...] = ()
  sha256: str = ""

  def __post_init__(self):
    if not self.against:
      raise UserError(
        "--clean=decontaminate: found no --against, expected files of evaluation texts"
      )
    _, sha256 = load_known_texts(self.against)
    if self.sha256 not in ("", sha256):
      raise UserError(
        f"--against={','.join(self.against)}: found other texts than when the preparation began"
      )
    object.__setattr__(self, "sha256", sha256)

  def clean(self, text: str) -> CleanResult:
    hashes_n = _hash_words(_words(text))
    known_by_length, _ = load_known_texts(self.against)
    for num_words, ngrams in known_by_length.items():
      keys_n = _hash_ngrams(hashes_n, num_words)
      indices_n = np.searchsorted(ngrams.keys_K, keys_n).clip(max=ngrams.keys_K.size - 1)
      is_known_n = ngrams.keys_K[indices_n] == keys_n
      if is_known_n.any():
        first_match = indices_n[is_known_n.argmax()]
        file = ngrams.files[ngrams.file_numbers_K[first_match]]
        return None, f"text of {file}", Counter()
    return text, None, Counter()

  def is_long_enough(self, text: str) -> bool:
    return True  # this step sets no minimum


@dataclasses.dataclass(frozen=True)
class KnownNgrams:
  """The n-grams of evaluation texts that have the same number of words.

  Attributes:
    keys_K: sorted hashes of the n-grams, uint64.
    file_numbers_K: index in `files` of the first file that contains each n-gram.
    files: names of the files.
  """

  keys_K: np.ndarray
  file_numbers_K: np.ndarray
  files: list[str]


@functools.lru_cache(4)
def load_known_texts(against: tuple[str, ...]) -> tuple[dict[int, KnownNgrams], str]:
  """Read evaluation texts; return their n-grams by number of words, and the texts' SHA-256."""
  file_of_key: dict[int, dict[int, int]] = {}  # by number of words and hash
  files = []
  checksum = hashlib.sha256()
  paths = [path for pattern in against for path in _matching_files(pattern)]
  for number, path in enumerate(dict.fromkeys(paths)):
    files.append(path.rpartition("/")[2])
    for text in read_texts(path):
      checksum.update(text.encode("utf-8", "surrogatepass") + b"\0")
      words = _words(text)
      hashes_n = _hash_words(words)
      num_letters = sum(segmentation.is_unspaced(word) for word in words)
      # A letter of a script without spaces is a word here, and two of them count as one.
      scale = 2 if 2 * num_letters > len(words) else 1
      if hashes_n.size >= scale * MIN_WORDS:
        num_words = min(scale * WORDS, hashes_n.size)
        for key in _hash_ngrams(hashes_n, num_words).tolist():
          file_of_key.setdefault(num_words, {}).setdefault(key, number)
  if not file_of_key:
    raise UserError(
      f"--against={','.join(against)}: found no text of {MIN_WORDS} words or more in "
      f"{len(files)} files"
    )
  known_by_length = {}
  for num_words, numbers in sorted(file_of_key.items(), reverse=True):
    keys = sorted(numbers)
    file_numbers_K = np.array([numbers[key] for key in keys])
    known_by_length[num_words] = KnownNgrams(np.array(keys, np.uint64), file_numbers_K, files)
  return known_by_length, checksum.hexdigest()


def read_texts(path: str) -> Iterator[str]:
  """Yield the texts of a file of evaluation examples.

  Raises:
    UserError: the file is unreadable or not UTF-8, or is not the JSON that its name promises.
  """
  bare_path = without_suffix(path)
  number = 0
  try:
    with open_plain(path) as file:
      if bare_path.endswith(".json"):
        yield from _strings(json.load(file))
        return
      for line in file:
        number += 1
        if not bare_path.endswith((".jsonl", ".ndjson")):
          yield from line.decode().rstrip("\r\n").split("\t")
        elif line.strip():
          yield from _strings(json.loads(line))
  except (*DAMAGED, RecursionError) as error:
    raise UserError(
      f"--against: {path}, line {number}: cannot be read as evaluation texts ({error})"
    ) from error


def _matching_files(pattern: str) -> list[str]:
  """Return the files of a pattern; UserError for an alternative without files."""
  paths = []
  for expanded in globs.expand(pattern):
    matches = globs.find_matches(expanded)
    if not matches:
      raise UserError(f"--against={expanded}: found no such file")
    paths += matches
  return paths


def _strings(value: Any) -> Iterator[str]:
  """Yield all texts within a JSON value, keys excluded."""
  if isinstance(value, str):
    yield value
  elif isinstance(value, list):
    for element in value:
      yield from _strings(element)
  elif isinstance(value, dict):
    for element in value.values():
      yield from _strings(element)


def _words(text: str) -> list[str]:
  """Return the words of a text, normalised, in lower case and without punctuation."""
  return segmentation.terms(_IGNORED.sub("", unicodedata.normalize("NFKC", text).casefold()))


def _hash_words(words: list[str]) -> np.ndarray:
  """Return a hash of each word, uint64 [n]."""
  return np.fromiter(map(_hash_word, words), np.uint64, len(words))


_hash_word = functools.lru_cache(2**18)(hash_text)


def _hash_ngrams(hashes_n: np.ndarray, num_words: int) -> np.ndarray:
  """Return a hash of every run of `num_words` words, uint64 [n - num_words + 1]."""
  count = max(hashes_n.size - num_words + 1, 0)
  ngrams_n = np.zeros(count, np.uint64)
  for offset in range(num_words):
    ngrams_n = ngrams_n * _BASE + hashes_n[offset : offset + count]
  return ngrams_n
