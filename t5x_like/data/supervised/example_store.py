"""Examples of token streams and labels, prepared once from the records of a source.

Supervised tasks read them. They are in a store (see `data/prepared.py`) whose items are examples.
Token streams are arrays of ids. The other arrays hold numbers: one or several per example, or one
per token of a stream. `plans/` in the same directory has packing plans, see
`packing.load_or_plan`. Several processes make the examples, so training never tokenises.
"""

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from t5x_like import data
from t5x_like.corpora import builtin
from t5x_like.corpora.engines import batches
from t5x_like.corpora.job import ItemBatch, StoredBatch, describe_skipped
from t5x_like.corpora.sources import Record, Skip
from t5x_like.data import prepared
from t5x_like.data.supervised import records
from t5x_like.errors import UserError
from t5x_like.store import ids
from t5x_like.store import manifest as manifests
from t5x_like.store.reader import Store, Verify
from t5x_like.vocabularies import Vocabulary

# The ids of each stream, int32 [n], and the numbers of each array.
Example = dict[str, Any]
# What a record counts as besides its texts, when records are divided into batches.
_CHARACTERS = 2**7


class ExampleStore:
  """Prepared examples, opened by `open_store`.

  Attributes:
    path: the directory.
    name: the name of the corpus.
    num_examples: the number of examples N.
    fingerprint: SHA-256 of the content.
    arrays: the numbers of all examples by name: [N], several per example, or one per token of a
      stream.
    ends: the end of each example in each stream: int64 [N].
    lengths: tokens of each example in each stream: int64 [N].

  Raises:
    UserError: the store lacks a stream, or an array does not fit the examples.
  """

  def __init__(self, store: Store):
    self._store = store
    self.path = store.path
    self.name = store.name
    self.fingerprint = store.fingerprint
    self.num_examples = store.num_items
    counts = {array.name: array.num_values for array in store.manifest.arrays}
    streams = tuple(store.manifest.facts["append_eos"])
    for name in streams:
      if name not in counts:
        raise UserError(
          f"{store.path}/{manifests.FILE}: arrays: found no {name!r}, a stream of the task"
        )
    for name, count in counts.items():
      is_per_token = count in [counts[stream] for stream in streams]
      is_per_example = count > 0 and count % self.num_examples == 0
      if not is_per_token and not is_per_example:
        raise UserError(
          f"{store.path}: {name}: found {count} values, expected one or several for each of "
          f"{self.num_examples} examples, or one per token; delete {store.path} and it is made "
          "again"
        )
    self.arrays = {name: store.read_values(name) for name in counts if name not in streams}
    self.ends = {name: store.read_ends(name) for name in streams}
    self.lengths = {name: np.diff(ends, prepend=0) for name, ends in self.ends.items()}
    sizes = ", ".join(f"{counts[name]:,} tokens of {name}" for name in streams)
    skipped = describe_skipped(store.manifest.skipped)
    data.announce(
      f"{self.path}: {self.num_examples:,} examples, {sizes}{skipped}",
      f"; {store.verification}",
    )

  @property
  def vocabulary(self) -> Vocabulary:
    return self._store.vocabulary

  def read(
    self, stream: str, example_n: np.ndarray, length_n: np.ndarray, skip_n: np.ndarray | int = 0
  ) -> tuple[np.ndarray, np.ndarray]:
    """Read the first `length_n` tokens of some examples, after skipping `skip_n`.

    Returns:
      (int32 [n, L], bool [n, L]): tokens, and which of them belong to the example; L is the longest
      of `length_n`.
    """
    L = max(int(length_n.max(initial=1)), 1)
    start_n = self.ends[stream][example_n] - self.lengths[stream][example_n] + skip_n
    tokens_nL = self._store.read_padded(stream, start_n, length_n, L)
    return tokens_nL, np.arange(L) < length_n[:, None]


def open_store(
  source: str,
  split: str,
  *,
  task: str,
  fields: tuple[str, ...],
  facts: dict[str, Any],
  vocabulary: Vocabulary,
  streams: dict[str, bool],
  examples: Callable[[Iterator[tuple[str, Record]]], Iterator[Example | Skip]],
  cache: str,
  data_dir: str | None = None,
  verify: Verify = "auto",
) -> ExampleStore:
  """Open the examples of a task, preparing them first if necessary.

  Args:
    source, split, data_dir: the source of the records, see `corpora/sources/__init__.py`;
      `validation[:200]` is the first 200 of them.
    task: the name and version of the task.
    fields: the record fields in use.
    facts: all else that determines the examples besides the vocabulary; JSON-serialisable.
    vocabulary: the vocabulary of the ids.
    streams: the names of the token streams, and whether their examples end with EOS.
    examples: `((where, record) pairs) -> examples`, each made by itself; a `Skip` is counted. It is
      called only for preparation, and in other processes.
    cache: the local directory of all prepared examples.
    verify: the checks on opening, see `Store.open`.

  Raises:
    UserError, DamageError: see `prepared.open_store`.
  """
  records_source = prepared.open_source_fields(source, fields, data_dir)
  if records_source.name == builtin.NAME:
    cache = builtin.prepare() + "_examples"
  prepared_examples = PreparedExamples(
    source=records_source,
    split=split,
    cache=cache,
    store_facts=ids.facts(vocabulary, streams),
    arguments={"task": task, **facts},
    vocabulary=vocabulary,
    streams=streams,
    make_examples=examples,
    unit=next(iter(streams)),
  )
  engine = batches.Engine(os.cpu_count() or 1)
  return ExampleStore(prepared.open_store(prepared_examples, engine, verify))


@dataclasses.dataclass(frozen=True)
class PreparedExamples(prepared.PreparedStore):
  """The prepared examples of a task.

  Attributes:
    streams: the names of the token streams, and whether their examples end with EOS.
    make_examples: `((where, record) pairs) -> examples`, see `open_store`.
    unit: the first stream.
  """

  streams: dict[str, bool]
  make_examples: Callable[[Iterator[tuple[str, Record]]], Iterator[Example | Skip]]
  unit: str

  items = "examples"
  advice = "check the source and the fields of the task"
  shard_values = 2**22

  def characters(self, item: tuple[str, Record | Skip], /) -> int:
    _, record = item
    if isinstance(record, Skip):
      return _CHARACTERS
    return _CHARACTERS + sum(len(text) for text in record.values() if isinstance(text, str))

  def make(self, batch: ItemBatch) -> StoredBatch:
    skipped: Counter[str] = Counter()
    examples = []
    usable_records = records.drop_unusable(iter(batch.items), skipped)
    for example in self.make_examples(usable_records):
      if isinstance(example, Skip):
        skipped[example.reason] += 1
      else:
        examples.append(example)
    num_skipped = skipped.total()
    if len(examples) + num_skipped != len(batch.items):
      raise ValueError(
        f"{len(examples)} examples and {num_skipped} skips of {len(batch.items)} records"
      )
    arrays = {}
    if examples:
      for name in [*self.streams, *sorted(examples[0].keys() - self.streams.keys())]:
        values, lengths = self._concatenate(name, examples)
        arrays[name] = values, np.concatenate([lengths, np.zeros(num_skipped, np.int64)])
    reasons = [None] * len(examples) + list(skipped.elements())
    return StoredBatch(arrays, reasons, [None] * len(batch.items))

  def _concatenate(self, name: str, examples: list[Example]) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of an array and their number in each example."""
    parts = [np.atleast_1d(example[name]) for example in examples]
    values = np.concatenate(parts)
    lengths = np.array([len(part) for part in parts], np.int64)
    if name not in self.streams:
      return values, lengths
    return ids.prepare(self.vocabulary, self.streams[name], values, lengths, self.arguments["task"])
