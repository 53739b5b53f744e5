"""The splits of a corpus: which documents each gets, chosen by a hash of their text, or which part
of a document.

A source without a validation split lends it a fraction of its training documents: those whose hash
is low, so that copies of a text are never in both. A corpus of one document, or of a few, may have
none of these. Its documents then fill validation in the order of their hashes, until the fraction
of all characters is reached, and the last of them is
cut: validation gets its end. The cut is where a line ends or, failing that, a sentence or a word,
  as near as possible to the fraction.
"""

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

from t5x_like import segmentation
from t5x_like.corpora.documents import Documents
from t5x_like.corpora.sources import Source
from t5x_like.corpora.sources._files import SPLIT_WORDS
from t5x_like.errors import UserError

_FEW = 1000  # of more documents, none is cut
_LINE = re.compile(r"\n+")
_SPACE = re.compile(r"\s+")
# the longer an end, the earlier it is tried
_ENDS: dict[str, Callable[[str, int, int], Iterator[int]]] = {
  "a line": lambda text, start, end: (match.end() for match in _LINE.finditer(text, start, end)),
  "a sentence": segmentation.sentence_ends,
  "a word": lambda text, start, end: (match.end() for match in _SPACE.finditer(text, start, end)),
}


@dataclasses.dataclass(frozen=True)
class SplitPart:
  """The documents of a source's split whose hash, as a fraction of all hashes, lies in [low, high).

  Attributes:
    cut: the hash of the document that train and validation share, in hexadecimal; empty for none.
    at: the number of its first characters, which train gets; validation (low = 0) gets the others.
  """

  split: str
  low: float = 0.0
  high: float = 1.0
  cut: str = ""
  at: int = 0

  def of(self, text: str) -> str:
    """Return the part's share of a document, empty for none; copies of a text are shared alike."""
    if (self.low, self.high) == (0, 1):
      return text
    key = _hash(text)
    if key == self.cut:
      return text[: self.at] if self.low else text[self.at :]
    return text if self.low * 2**64 <= int(key, 16) < self.high * 2**64 else ""

  @property
  def record(self) -> dict[str, Any]:
    """The part as JSON."""
    record = dataclasses.asdict(self)
    return record if self.cut else {key: record[key] for key in ("split", "low", "high")}


def split_names(source: Source, fraction: float) -> list[str]:
  """Return the splits of a source, and `validation` if train lends it `fraction` of its
  documents."""
  # as `valid` or `dev`
  held_out = any(SPLIT_WORDS.get(split.lower()) == "validation" for split in source.splits)
  lends = fraction and "train" in source.splits and not held_out
  return [*source.splits, *(["validation"] if lends else [])]


def plan_parts(documents: Documents, fraction: float) -> dict[str, SplitPart]:
  """Return the part of each split in `names`. If a document is cut, say so. UserError if two splits
  share a file."""
  source = documents.source
  if shared := source.shared_file():
    raise UserError(
      f"source {documents.spec}: found {shared} in two splits, expected it in one, since a "
      "model must not be evaluated on texts that it has trained on; narrow the pattern of the "
      "other"
    )
  parts = {split: SplitPart(split) for split in source.splits}
  if len(split_names(source, fraction)) == len(parts):
    return parts
  train = SplitPart("train", low=fraction)
  validation = SplitPart("train", high=fraction)
  lengths = {}
  missing = [train, validation]
  count = 0
  for text in itertools.islice(documents.usable("train"), _FEW):
    count += 1
    lengths[_hash(text)] = len(text)
    if not (missing := [part for part in missing if not part.of(text)]):
      break
  if missing and count < _FEW:
    key, at, end = _cut(documents, lengths, fraction)
    bound = int(key, 16) / 2**64
    train = SplitPart("train", low=bound, cut=key, at=at)
    validation = SplitPart("train", high=bound, cut=key, at=at)
    held = sum(n for other, n in lengths.items() if other < key) + lengths[key] - at
    print(
      f"{source.name}: no whole document makes a validation part of {fraction:g}, so it gets the "
      f"last {held:,} of {sum(lengths.values()):,} characters, cut after {end}",
      flush=True,
    )
  return parts | {"train": train, "validation": validation}


def _cut(documents: Documents, lengths: dict[str, int], fraction: float) -> tuple[str, int, str]:
  """Return the hash of the last document in validation, the characters that train keeps of it, and
  where it is cut."""
  wanted = fraction * sum(lengths.values())
  *others, last = sorted(lengths)
  for key in others:
    if lengths[key] > 2 * wanted:
      break
    wanted -= lengths[key]
    if wanted <= 0:
      return key, 0, "a document"
  else:
    key = last
  text = next(text for text in documents.usable("train") if _hash(text) == key)
  least = max(1, int(wanted))
  for end, places in _ENDS.items():
    low = max(1, len(text) - least - least // 2)
    high = min(len(text) - 1, len(text) - least // 2)
    found = [place for place in places(text, max(0, low - 1), high + 1) if low <= place <= high]
    if found:
      return key, min(found, key=lambda at: (abs(len(text) - least - at), at)), end
  return key, max(len(text) - least, 1), "a character"


def _hash(text: str) -> str:
  return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
