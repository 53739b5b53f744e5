"""Define jobs, which prepare stores, and `StoreKind`, the base of the kinds of stores.

A kind divides a source into parts and makes arrays of a part's items, batch by batch. The kind is
chosen when the job is made: tokens of documents (`tokens.py`), examples, images. `building.py` and
the engines treat all kinds in the same way.
"""

import abc
import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t5x_like.corpora import cleaning
from t5x_like.files import checked_json
from t5x_like.files.paths import AnyPath, as_path, is_remote
from t5x_like.terminal_text import escape_controls
from t5x_like.vocabularies import Vocabulary

_VERSION = 5  # of the records of parts and signatures; those of other versions are made again


@dataclasses.dataclass(frozen=True)
class StoredBatch:
  """The arrays of a batch of D items, in the form of a store.

  Attributes:
    arrays: for each array's name, the concatenated values of all items and the number of values of
      each item, int64 [D]. Skipped items have 0 values. Empty if all items are skipped.
    reasons: reason to skip each item. None stands for a stored item; items that are skipped but not
      counted have an empty reason.
    removed: for each item, how much cleaning has removed from it, by reason.
  """

  arrays: dict[str, tuple[np.ndarray, np.ndarray]]
  reasons: list[str | None]
  removed: list[Counter | None]


class StoreKind(abc.ABC):
  """The base of the kinds of stores.

  Kinds are frozen dataclasses, which are pickled to other processes and machines.

  Attributes:
    unit: array whose values are counted, for the sizes of shards and in messages.
    shard_values: number of values of `unit` at which a shard closes, after the item reaching it.
    items: name of the items in messages.
    advice: remedy in the message about a store without items.
    whole_batches: whether shards close only between batches, as items of a batch are reordered.
    counted: whether the manifest has the totals of `removed` and of the items' lengths.
    steps: cleaning steps.
    vocabulary: vocabulary of the ids, or None.
    store_facts: the facts that the store's manifest records.
  """

  unit: str
  shard_values: int
  items: str
  advice: str
  whole_batches: bool = False
  counted: bool = False
  steps: tuple[cleaning.Step, ...] = ()
  vocabulary: Vocabulary | None
  store_facts: dict[str, Any]

  @property
  @abc.abstractmethod
  def facts(self) -> dict[str, Any]:
    """Everything that determines the bytes, as JSON, except for `part_facts`."""

  def part_facts(self, number: int) -> Any:
    """Return everything else that determines the bytes of a part, as JSON."""
    return None

  @property
  @abc.abstractmethod
  def num_parts(self) -> int:
    """The number of parts of the source."""

  @abc.abstractmethod
  def is_current(self) -> bool:
    """Return whether the source is still as it was when the job was made."""

  @abc.abstractmethod
  def part_size(self, number: int) -> int:
    """Return the stored bytes of a part, for progress display."""

  @abc.abstractmethod
  def read(self, number: int) -> Iterator[Any]:
    """Yield the items of a part, in order."""

  @abc.abstractmethod
  def characters(self, item: Any, /) -> int:
    """Return the size of an item, for dividing items into batches."""

  @abc.abstractmethod
  def make(self, batch: "ItemBatch") -> StoredBatch:
    """Make the arrays of a batch; called in any process."""


@dataclasses.dataclass(frozen=True)
class Job:
  """A store to make.

  Attributes:
    kind: kind of the store, which makes its content.
    path: directory of the store, local or at a URL.
    name, split, source: name of the corpus, its split and its provenance, for the manifest.
  """

  kind: StoreKind
  path: str
  name: str
  split: str
  source: dict[str, Any]

  @property
  def work(self) -> AnyPath:
    """The directory that becomes the store.

    At a URL, where files appear only when they are complete, it is the store's directory.
    """
    return as_path(self.path) if is_remote(self.path) else self._beside("incomplete")

  @property
  def progress(self) -> AnyPath:
    """The directory of the records of finished parts."""
    return self._beside("progress")

  def _beside(self, suffix: str) -> AnyPath:
    """Return the path `.<name>.<suffix>` in the folder of the store."""
    start = self.path.rfind("/") + 1
    return as_path(f"{self.path[:start]}.{self.path[start:]}.{suffix}")

  @functools.cached_property
  def key(self) -> str:
    """The SHA-256 of everything that determines the bytes of all parts."""
    return checked_json.digest({**self.kind.facts, "version": _VERSION})

  def part_key(self, number: int) -> str:
    """Return the SHA-256 of everything that determines the bytes of a part."""
    return checked_json.digest([self.key, self.kind.part_facts(number)])


@dataclasses.dataclass(frozen=True)
class ItemBatch:
  """Consecutive items of a part.

  Attributes:
    items: the items.
    marks: for each cleaning step that removes duplicates, the marks of each item.
  """

  items: list[Any]
  marks: dict[str, list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class DuplicateMarks:
  """The marks that a cleaning step sets on the signatures of a part's items.

  Attributes:
    marked: marks of all signatures, bool [n].
    ends: 0 and the end of each item's signatures, int64 [D + 1].
  """

  marked: np.ndarray
  ends: np.ndarray

  def for_items(self, first: int, end: int) -> list[np.ndarray]:
    """Return the marks of items `first` to `end` - 1."""
    ends = self.ends[first : end + 1]
    return np.split(self.marked[ends[0] : ends[-1]], ends[1:-1] - ends[0])


BATCH_CHARACTERS = 2**19
_BATCH_ITEMS = 2**16


def batch_items(
  kind: StoreKind, items: Iterator[Any], marks: dict[str, DuplicateMarks], start: int
) -> Iterator[ItemBatch]:
  """Group the items of a part from number `start` into batches of about 512 K characters."""

  def make_batch(batch: list[Any], first: int) -> ItemBatch:
    end = first + len(batch)
    batch_marks = {step: step_marks.for_items(first, end) for step, step_marks in marks.items()}
    return ItemBatch(batch, batch_marks)

  batch: list[Any] = []
  num_characters = 0
  first = start
  for item in items:
    batch.append(item)
    num_characters += kind.characters(item)
    if num_characters >= BATCH_CHARACTERS or len(batch) >= _BATCH_ITEMS:
      yield make_batch(batch, first)
      first += len(batch)
      batch = []
      num_characters = 0
  if batch:
    yield make_batch(batch, first)


def describe_skipped(skipped: Mapping[str, int]) -> str:
  """Return a clause on skipped records, to follow the number of used ones."""
  clauses = []
  for reason, number in sorted(skipped.items()):
    clauses.append(f", {number:,} records skipped ({escape_controls(reason)})")
  return "".join(clauses)
