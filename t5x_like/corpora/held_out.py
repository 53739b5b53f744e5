"""Divide a corpus into splits: whole documents by a hash of their text, or parts of a document.

In a source without a validation split, a fraction of the training documents form it: those whose
hash is low, so that copies of a text are never in both. A corpus of one document, or of a few, may
have none of these. Its documents then fill validation in the order of their hashes, until the
fraction of all characters is reached, and the last of them is cut: validation gets its end. The cut
is where a line ends or, failing that, a sentence or a word, as near as possible to the fraction.
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

_MAX_DOCUMENTS_TO_CUT = 1000  # the documents of a larger corpus are not cut
_LINE = re.compile(r"\n+")
_SPACE = re.compile(r"\s+")
# Positions where a document may be cut, the preferred ones first.
_ENDS: dict[str, Callable[[str, int, int], Iterator[int]]] = {
  "a line": lambda text, start, end: (match.end() for match in _LINE.finditer(text, start, end)),
  "a sentence": segmentation.sentence_ends,
  "a word": lambda text, start, end: (match.end() for match in _SPACE.finditer(text, start, end)),
}


@dataclasses.dataclass(frozen=True)
class SplitPart:
  """The documents of a source's split whose hash, as a fraction of all hashes, lies in [low, high).

  Attributes:
    split: split of the source.
    low, high: bounds of the hashes.
    cut: hash of the document that train and validation share, in hexadecimal; empty for none.
    at: number of characters at the beginning of that document that belong to train. Validation
      (low = 0) gets the others.
  """

  split: str
  low: float = 0.0
  high: float = 1.0
  cut: str = ""
  at: int = 0

  def share(self, text: str) -> str:
    """Return the part's share of a document, the same for copies of a text; empty for none."""
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
  """Return a source's splits, and `validation` if a fraction of train's documents form it."""
  # `valid` and `dev` are validation splits too
  has_validation = any(SPLIT_WORDS.get(split.lower()) == "validation" for split in source.splits)
  if fraction and "train" in source.splits and not has_validation:
    return [*source.splits, "validation"]
  return list(source.splits)


def plan_parts(documents: Documents, fraction: float) -> dict[str, SplitPart]:
  """Return the part of the source that makes each split in `split_names`.

  Prints a line if a document is cut.

  Raises:
    UserError: two splits share a file.
  """
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
  empty_parts = [train, validation]
  num_documents = 0
  for text in itertools.islice(documents.usable("train"), _MAX_DOCUMENTS_TO_CUT):
    num_documents += 1
    lengths[_hash(text)] = len(text)
    empty_parts = [part for part in empty_parts if not part.share(text)]
    if not empty_parts:
      break
  if empty_parts and num_documents < _MAX_DOCUMENTS_TO_CUT:
    key, at, end_name = _find_cut(documents, lengths, fraction)
    bound = int(key, 16) / 2**64
    train = SplitPart("train", low=bound, cut=key, at=at)
    validation = SplitPart("train", high=bound, cut=key, at=at)
    whole_characters = sum(length for other_key, length in lengths.items() if other_key < key)
    num_characters = whole_characters + lengths[key] - at
    print(
      f"{source.name}: no whole document makes a validation part of {fraction:g}, so it gets the "
      f"last {num_characters:,} of {sum(lengths.values()):,} characters, cut after {end_name}",
      flush=True,
    )
  return parts | {"train": train, "validation": validation}


def _find_cut(
  documents: Documents, lengths: dict[str, int], fraction: float
) -> tuple[str, int, str]:
  """Return where the last document of validation is cut.

  Args:
    documents: documents of the corpus.
    lengths: number of characters of each document, by its hash.
    fraction: share of all characters that validation gets.

  Returns:
    The document's hash, the number of characters that train keeps, and the name of the position of
    the cut, such as "a line".
  """
  remaining = fraction * sum(lengths.values())
  *first_keys, last_key = sorted(lengths)
  for key in first_keys:
    if lengths[key] > 2 * remaining:
      break
    remaining -= lengths[key]
    if remaining <= 0:
      return key, 0, "a document"
  else:
    key = last_key
  text = next(text for text in documents.usable("train") if _hash(text) == key)
  size = max(1, int(remaining))
  ideal = len(text) - size
  for end_name, find_ends in _ENDS.items():
    low = max(1, ideal - size // 2)
    high = min(len(text) - 1, len(text) - size // 2)
    ends = [end for end in find_ends(text, max(0, low - 1), high + 1) if low <= end <= high]
    if ends:
      return key, min(ends, key=lambda end: (abs(ideal - end), end)), end_name
  return key, max(ideal, 1), "a character"


def _hash(text: str) -> str:
  return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
