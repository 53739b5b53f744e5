"""`decontaminate`: removes pages that contain a text of an evaluation set, by 13 words in a row.

The method is that of Brown et al. 2020, appendix C, which removes 200 characters on each side
instead of the page: words in lower case without punctuation, and the whole text where it has 8 to
12 words. Shorter texts are not looked for, as they occur by chance. Spellings that Unicode holds
equal (NFKC_Casefold) are one. In texts mostly of scripts without spaces between words, two letters
count as a word.
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
from t5x_like.corpora.sources._compression import DAMAGED, open_plain
from t5x_like.errors import UserError
from t5x_like.files import globs

WORDS = 13
FEWEST = 8
# soft hyphens, joiners, …
_IGNORED = re.compile("[\u00ad\u034f\u061c\u200b-\u200f\u2060-\u2064\ufe00-\ufe0f\ufeff]")
_BASE = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass(frozen=True)
class Step(Filter):
  """The filter of one page.

  Attributes:
    against: files of evaluation texts, or patterns of their names: JSON or JSONL, of which every
      text counts, or lines whose columns are separated by tabs; compressed or not.
    sha256: of the texts, so that a changed file makes another corpus; empty to compute it.

  Raises:
    UserError: no file, or one that cannot be read; or other texts than the checksum's.
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
    sha256 = load_known_texts(self.against)[1]
    if self.sha256 not in ("", sha256):
      raise UserError(
        f"--against={','.join(self.against)}: found other texts than when the preparation began"
      )
    object.__setattr__(self, "sha256", sha256)

  def clean(self, text: str) -> CleanResult:
    hashes_n = _hashes(_terms(text))
    for words, (keys_n, names_n, files) in load_known_texts(self.against)[0].items():
      found_n = _rows(hashes_n, words)
      at_n = np.searchsorted(keys_n, found_n).clip(max=keys_n.size - 1)
      if (hit_n := keys_n[at_n] == found_n).any():
        return None, f"text of {files[names_n[at_n[hit_n.argmax()]]]}", Counter()
    return text, None, Counter()

  def is_long_enough(self, text: str) -> bool:
    return True


@functools.lru_cache(4)
def load_known_texts(
  against: tuple[str, ...],
) -> tuple[dict[int, tuple[np.ndarray, np.ndarray, list[str]]], str]:
  """Return ({number of words: (sorted hashes of rows of words, the file of each, names of files)},
  SHA-256)."""
  rows: dict[int, dict[int, int]] = {}
  files = []
  checksum = hashlib.sha256()
  for path in dict.fromkeys(path for pattern in against for path in _matches(pattern)):
    files.append(path.rpartition("/")[2])
    for text in texts(path):
      checksum.update(text.encode("utf-8", "surrogatepass") + b"\0")
      terms = _terms(text)
      hashes_n = _hashes(terms)
      scale = 2 if 2 * sum(map(segmentation.is_unspaced, terms)) > len(terms) else 1
      if hashes_n.size >= scale * FEWEST:
        words = min(scale * WORDS, hashes_n.size)
        for key in _rows(hashes_n, words).tolist():
          rows.setdefault(words, {}).setdefault(key, len(files) - 1)
  if not rows:
    raise UserError(
      f"--against={','.join(against)}: found no text of {FEWEST} words or more in "
      f"{len(files)} files"
    )
  found = {}
  for words, keys in sorted(rows.items(), reverse=True):
    ordered = sorted(keys)
    found[words] = np.array(ordered, np.uint64), np.array([keys[key] for key in ordered]), files
  return found, checksum.hexdigest()


def texts(path: str) -> Iterator[str]:
  """Yield the texts of a file of evaluation examples; raise UserError if it is unreadable or no
  UTF-8 or JSON lines."""
  bare = re.sub(r"\.(gz|bz2|xz|zst)$", "", path)
  number = 0
  try:
    with open_plain(path) as file:
      if bare.endswith(".json"):
        yield from _strings(json.load(file))
        return
      for line in file:
        number += 1
        if bare.endswith((".jsonl", ".ndjson")):
          yield from _strings(json.loads(line)) if line.strip() else ()
        else:
          yield from line.decode().rstrip("\r\n").split("\t")
  except (*DAMAGED, RecursionError) as error:
    raise UserError(
      f"--against: {path}, line {number}: cannot be read as evaluation texts ({error})"
    ) from error


def _matches(pattern: str) -> list[str]:
  found = {one: globs.find_matches(one) for one in globs.expand(pattern)}
  if missing := [one for one, paths in found.items() if not paths]:
    raise UserError(f"--against={missing[0]}: found no such file")
  return [path for paths in found.values() for path in paths]


def _strings(value: Any) -> Iterator[str]:
  """Yield all texts within a JSON value; keys are none."""
  if isinstance(value, str):
    yield value
  elif isinstance(value, list | dict):
    for item in value.values() if isinstance(value, dict) else value:
      yield from _strings(item)


def _terms(text: str) -> list[str]:
  """Return the words of a text in one spelling of each."""
  return segmentation.terms(_IGNORED.sub("", unicodedata.normalize("NFKC", text).casefold()))


def _hashes(terms: list[str]) -> np.ndarray:
  """Return a hash of each word, uint64 [n]."""
  return np.fromiter(map(_hash, terms), np.uint64, len(terms))


_hash = functools.lru_cache(2**18)(hash_text)


def _rows(hashes_n: np.ndarray, words: int) -> np.ndarray:
  """Return a hash of each `words` words in a row, uint64 [n - words + 1]."""
  count = max(hashes_n.size - words + 1, 0)
  total_n = np.zeros(count, np.uint64)
  for offset in range(words):
    total_n = total_n * _BASE + hashes_n[offset : offset + count]
  return total_n
