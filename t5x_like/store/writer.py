"""Writers of stores: of one shard, and of a whole store, atomically.

A shard's bytes depend only on its items. So parts of a store may be written anywhere, in any order, by `ShardWriter`,
and `described` joins their shards into a store without reading them. `StoreWriter` writes a local store from one
stream of items. Its shards close at the first item at or after `shard_values` values, so the bytes do not depend on
batching. Everything is written to the sibling `.<name>.incomplete`, flushed to disk and renamed when complete. A
directory left by a killed run is emptied and reused; a directory that a live process is writing is an error.
"""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from t5x_like.errors import UserError, one_line
from t5x_like.files import file_names
from t5x_like.files.local import synced
from t5x_like.files.locks import Lock
from t5x_like.store import manifest as manifests
from t5x_like.store import shards as store_shards
from t5x_like.store.manifest import Array, Manifest
from t5x_like.store.shards import Shard, files_of
from t5x_like.vocabularies import Vocabulary

SHARD_VALUES = 2**26

Items = Mapping[str, tuple[np.ndarray, np.ndarray]]  # by array: the values of all items, and their number in each


class ShardWriter:
  """A writer of one shard's files.

  Args:
    root: the local directory of the store.
    name: name of the shard, digits.
    arrays: the arrays of the store.

  Attributes:
    num_values: values of all arrays so far.
  """

  def __init__(self, root: pathlib.Path, name: str, arrays: Sequence[Array]):
    manifests.check_arrays(arrays, root)
    self._root, self._name, self._arrays, self.num_values = root, name, arrays, 0
    self._lengths: dict[str, list[np.ndarray]] = {array.name: [np.zeros(0, np.int64)] for array in arrays}
    self._digests = {file: hashlib.sha256() for array in arrays for file in files_of(array.name)}
    self._streams: dict[str, BinaryIO] = {}
    with _refusals(root):
      for directory in self._digests:
        (root / directory).mkdir(parents=True, exist_ok=True)
        self._streams[directory] = open(root / directory / name, "wb")

  def add(self, items: Items) -> None:
    """Add items; arrays of width above 1 have rows of values."""
    for array in self._arrays:
      values, lengths = items[array.name]
      dtype = np.dtype(array.dtype).newbyteorder("<")
      self._write(array.name, np.asarray(values).astype(dtype, casting="same_kind", copy=False))
      self._lengths[array.name].append(np.asarray(lengths, np.int64))
      self.num_values += len(values)

  def close(self) -> Shard:
    """Write the ends of items, flush the files to disk, and describe the shard."""
    ends = {name: np.cumsum(np.concatenate(lengths)) for name, lengths in self._lengths.items()}
    for name, ends_N in ends.items():
      self._write(files_of(name)[1], ends_N.astype("<i8"))
    with _refusals(self._root):
      for stream in self._streams.values():
        stream.flush()
        os.fsync(stream.fileno())
        stream.close()
    values = {name: int(ends_N[-1]) for name, ends_N in ends.items()}
    return Shard(self._name, ends_N.size, values, {file: digest.hexdigest() for file, digest in self._digests.items()})

  def _write(self, directory: str, numbers: np.ndarray) -> None:
    content = np.ascontiguousarray(numbers).data.cast("B") if numbers.size else b""
    with _refusals(self._root / directory / self._name):
      self._streams[directory].write(content)
    self._digests[directory].update(content)


def write_shard(root: pathlib.Path, name: str, arrays: Sequence[Array], items: Items) -> Shard:
  """Write a shard of at least one item; see `ShardWriter`."""
  writer = ShardWriter(root, name, arrays)
  writer.add(items)
  return writer.close()


def described(
  shards: Sequence[Shard],
  *,
  name: str,
  split: str,
  arrays: Sequence[Array],
  facts: dict[str, Any],
  skipped: Mapping[str, int],
  source: dict[str, Any],
) -> dict[str, bytes]:
  """Return the tables and the manifest of a store of these shards: contents by file, the manifest last.

  Args: see `Manifest`; the arrays need no counts.
  """
  tables = store_shards.tables(shards, arrays)
  manifest = Manifest(
    name=name,
    split=split,
    arrays=[dataclasses.replace(one, num_values=sum(shard.values[one.name] for shard in shards)) for one in arrays],
    facts=facts,
    skipped=dict(sorted(skipped.items())),
    num_items=sum(shard.items for shard in shards),
    num_shards=len(shards),
    name_digits=len(shards[0].name),
    tables={file: hashlib.sha256(content).hexdigest() for file, content in tables.items()},
    source=source,
    fingerprint="",
  )
  manifests.check(manifest, name)
  manifest = dataclasses.replace(manifest, fingerprint=store_shards.fingerprint(manifest, *tables.values()))
  return {**tables, manifests.FILE: manifest.to_json().encode()}


def publish(work: pathlib.Path, path: pathlib.Path, contents: dict[str, bytes], vocabulary: Vocabulary | None) -> None:
  """Turn a local directory of shards into the store at `path`: write the rest, flush it to disk, and rename."""
  with _refusals(work):
    if vocabulary:
      vocabulary.save(work / manifests.VOCABULARY)
    for file, content in contents.items():
      (work / file).write_bytes(content)
    flush_small(work)
    os.rename(work, path)
    synced(path.parent)


class StoreWriter(contextlib.AbstractContextManager):
  """A writer of a store; leaving the `with` block publishes it, an exception removes it.

  Args:
    path: the local directory to create.
    name: name of the corpus; part of metric names.
    split: name of the split, recorded in the manifest.
    arrays: the arrays, without counts.
    facts: see `Manifest`.
    vocabulary: the vocabulary of the ids, saved with the store; None for none.
    source: a JSON object recorded as provenance.
    shard_values: a shard closes at the first item at or after this many values of all arrays.

  Attributes:
    num_items, num_values: items, and values of all arrays, so far.
    skipped: the number of skipped records by reason, for the manifest.

  Raises:
    UserError: the path exists, is remote or not writable, or another process is writing it.
  """

  def __init__(
    self,
    path: str | os.PathLike,
    *,
    name: str,
    split: str,
    arrays: Sequence[Array],
    facts: dict[str, Any],
    vocabulary: Vocabulary | None = None,
    source: dict[str, Any] | None = None,
    shard_values: int = SHARD_VALUES,
  ):
    if "://" in os.fspath(path):
      raise UserError(f"{path}: stores are written to a local directory; write it there, then copy it")
    self.path = pathlib.Path(path)
    self._work = self.path.with_name(f".{self.path.name}.incomplete")
    self._about = dict(name=name, split=split, arrays=arrays, facts=facts, source=source or {})
    self._vocabulary, self._shard_values = vocabulary, shard_values
    self._shards, self._shard = [], None
    self.num_items, self.num_values, self.skipped = 0, 0, Counter()
    for key in ("name", "split"):
      file_names.check(key, self._about[key])

  def __enter__(self):
    if self.path.exists():
      raise UserError(
        f"{self.path}: exists already, expected a new path: a store is never overwritten; remove it or choose another "
        "output"
      )
    with _refusals(self._work):
      self._work.mkdir(parents=True, exist_ok=True)
    try:
      self._lock = Lock(self._work)
    except OSError as error:
      raise UserError(f"{self._work}: another process is writing this store: wait for it or stop it") from error
    with _refusals(self._work):
      for leftover in self._work.iterdir():
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    return self

  def __exit__(self, kind, error, traceback) -> None:
    try:
      if kind is None:
        self._publish()
    finally:
      shutil.rmtree(self._work, ignore_errors=True)  # left by a failure
      self._lock.close()

  def extend(self, items: Items) -> None:
    """Add items: the values of every array, and their number in each item.

    Raises:
      UserError: a shard cannot be written.
    """
    ends = {name: np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64) for name, (_, lengths) in items.items()}
    total_N, first = np.sum(list(ends.values()), axis=0), 0
    while first < total_N.size - 1:
      self._shard = self._shard or ShardWriter(self._work, f"{len(self._shards):08d}", self._about["arrays"])
      wanted = total_N[first] + self._shard_values - self._shard.num_values
      end = min(int(np.searchsorted(total_N, wanted)), total_N.size - 1)
      part = {name: (each[ends[name][first] : ends[name][end]], n[first:end]) for name, (each, n) in items.items()}
      self._shard.add(part)
      if total_N[end] >= wanted:
        self._close_shard()
      first = end
    self.num_items += total_N.size - 1
    self.num_values += int(total_N[-1])

  def _close_shard(self) -> None:
    self._shards.append(self._shard.close())
    self._shard = None

  def _publish(self) -> None:
    if self._shard:
      self._close_shard()
    if not self._shards:
      raise UserError(
        f"{self.path}: split {self._about['split']!r} has no documents with any tokens, expected at least one: "
        "check the source, or for a split by validation_fraction raise the fraction"
      )
    publish(self._work, self.path, described(self._shards, skipped=self.skipped, **self._about), self._vocabulary)


@contextlib.contextmanager
def _refusals(path: pathlib.Path):
  """Report a full disk, a read-only directory and the like as a one-line UserError."""
  try:
    yield
  except OSError as error:
    raise UserError(
      f"{path}: cannot be written ({one_line(error)}): free some space or choose another output"
    ) from error


def flush_small(root: pathlib.Path) -> None:
  """Flush a store's directories and files to disk, except shards, which are flushed when written."""
  for directory, _, names in os.walk(root):
    for path in (directory, *(os.path.join(directory, name) for name in names if not name.isdigit())):
      synced(path)
