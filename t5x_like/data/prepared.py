"""Stores that tasks prepare themselves, once, from the records of a source.

    <cache>/<name>-<split>-<key>/               a store, see `store/reader.py`
    <cache>/.<name>-<split>-<key>.incomplete/   finished shards of a preparation
    <cache>/.<name>-<split>-<key>.progress/     their records
    <cache>/.<name>-<split>-<key>.lock          held by the preparing process

A task prepares its store when it first needs it. The store's name has a hash of all that it depends
on: the names and sizes of the source's files, the modification times of local ones, and the
arguments of the task. Every later run opens it. A killed preparation continues from its finished
shards. Other processes wait during preparation. The manifest counts unusable records by reason.
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
import time
from collections.abc import Iterator
from typing import Any

from t5x_like.corpora import preparing
from t5x_like.corpora.engines import Engine
from t5x_like.corpora.job import Job, StoreKind, describe_skipped
from t5x_like.corpora.sources import (
  Record,
  Skip,
  Source,
  check_split,
  first_records,
  open_source,
  parse_split,
)
from t5x_like.errors import DamageError, UserError, one_line
from t5x_like.files import checked_json, exclusive
from t5x_like.files.locks import DirectoryInUse
from t5x_like.files.paths import as_path
from t5x_like.store import manifest as manifests
from t5x_like.store.reader import Store, Verify
from t5x_like.vocabularies import Vocabulary

_RETRY_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class PreparedStore(StoreKind):
  """The base of kinds of stores that are made of a source's records.

  Attributes:
    source: the open source; None in other processes, which only make batches.
    split: the split; `validation[:200]` is its first 200 records.
    cache: the local directory of all prepared stores.
    store_facts: the facts of the manifest.
    arguments: everything else that determines the items; JSON.
    vocabulary: the vocabulary of the ids; None for none.
  """

  source: Source | None
  split: str
  cache: str
  store_facts: dict[str, Any]
  arguments: dict[str, Any]
  vocabulary: Vocabulary | None

  whole_batches = True
  num_parts = 1

  def __getstate__(self) -> dict[str, Any]:
    state = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
    state["source"] = None
    return state

  @functools.cached_property
  def content(self) -> dict[str, Any]:
    """The request in JSON, which the manifest repeats as `source`."""
    check_split(self.source, self._split_name)
    content = {
      "format": manifests.FORMAT,
      "rows": self.source.split_facts(self._split_name),
      "split": self.split,
      "arguments": self.arguments,
    }
    return json.loads(json.dumps(content))

  @property
  def _split_name(self) -> str:
    """The split without the number of its first records."""
    name, _ = parse_split(self.split)
    return name

  @property
  def facts(self) -> dict[str, Any]:
    return {"content": self.content, "facts": self.store_facts}

  @property
  def path(self) -> pathlib.Path:
    """The directory of the store."""
    name, limit = parse_split(self.split)
    key = checked_json.digest([self.content, self.store_facts])
    return pathlib.Path(self.cache) / f"{self.source.name}-{name}{limit or ''}-{key[:16]}"

  def is_current(self) -> bool:
    rows = self.source.split_facts(self._split_name)
    return json.loads(json.dumps(rows)) == self.content["rows"]

  def part_size(self, number: int) -> int:
    name = self._split_name
    return sum(self.source.part_size(name, part) for part in self.source.parts(name, 2**62))

  def read(self, number: int) -> Iterator[tuple[str, Record | Skip]]:
    return first_records(self.source, self.split)

  def prepare(self, engine: Engine) -> None:
    """Make the store and report it."""
    path = str(self.path)
    job = Job(self, path, self.source.name, self._split_name, self.content)
    (changes,) = preparing.prepare([job], engine)
    manifest = Store.open(path, "size").manifest
    counts = "".join(f", {number:,} {change}" for change, number in sorted(changes.items()))
    print(
      f"data: {path}: prepared {manifest.num_items:,} "
      f"{self.items}{counts}{describe_skipped(manifest.skipped)}",
      flush=True,
    )


def open_source_fields(name: str, fields: tuple[str, ...], data_dir: str | None) -> Source:
  """Open a source of records with these fields; a repeated field counts once."""
  return open_source(name, fields=tuple(dict.fromkeys(fields)), data_dir=data_dir)


def open_store(records: PreparedStore, engine: Engine, verify: Verify) -> Store:
  """Open a store, after preparing it if necessary.

  Args:
    records: the store to open.
    engine: prepares it.
    verify: the checks on opening, see `Store.open`.

  Raises:
    UserError: an unusable source, an unwritable cache, no usable record, or a file changed since
      preparation.
    DamageError: a file is truncated or corrupt.
  """
  path = records.path
  if not (path / manifests.FILE).exists():
    with _lock(path):
      if not (path / manifests.FILE).exists():
        records.prepare(engine)
  remedy = f"delete {path} and it is made again"
  try:
    store = Store.open(path, verify)
  except (UserError, DamageError) as error:
    raise type(error)(f"{error}; or {remedy}") from error
  for key, expected in (("source", records.content), ("facts", records.store_facts)):
    actual = getattr(store.manifest, key)
    if json.dumps(actual, sort_keys=True) != json.dumps(expected, sort_keys=True):
      raise UserError(f"{path / manifests.FILE}: {key}: found another than the task's; {remedy}")
  return store


@contextlib.contextmanager
def _lock(path: pathlib.Path) -> Iterator[None]:
  """Wait for the lock of a store, or for the lease where there are no locks, and hold it."""
  directory = as_path(path.parent)
  name = f".{path.name}.lock"
  lock = None
  try:
    while lock is None:
      try:
        lock = exclusive.hold_directory(directory, name, exclusive.WRITING, f"{name}.lease")
      except DirectoryInUse:
        time.sleep(_RETRY_SECONDS)
  except OSError as error:
    raise UserError(
      f"config.task.cache: {path.parent} cannot be written ({one_line(error)}); choose another "
      "directory"
    ) from error
  with contextlib.closing(lock):
    yield
