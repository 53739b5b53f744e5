"""Write stores: one shard at a time, then the rest from the descriptions of the shards.

A shard's bytes depend only on its items. Parts of a store may therefore be written anywhere, in any
order, by `write_shard`, and `build_metadata` joins their shards into a store without reading them
(`corpora/building.py`). `publish` flushes a local store to disk and renames it.
"""

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like.errors import UserError, one_line
from t5x_like.files.local import LocalPath, sync
from t5x_like.files.paths import AnyPath
from t5x_like.store import manifest as manifests
from t5x_like.store import shards as store_shards
from t5x_like.store.manifest import Array, Manifest
from t5x_like.store.shards import Shard, array_directories
from t5x_like.vocabularies import Vocabulary

SHARD_VALUES = 2**26

# By array: the values of all items, one after the other, and the number of values of each item.
Items = Mapping[str, tuple[np.ndarray, np.ndarray]]


def write_shard(root: AnyPath, name: str, arrays: Sequence[Array], items: Items) -> Shard:
  """Write the files of a shard, each in one operation, and describe the shard.

  Args:
    root: the directory of the store, local or at a URL.
    name: name of the shard, digits.
    arrays: the arrays of the store; where the width is above 1, values are rows.
    items: at least one item.

  Raises:
    UserError: no store can hold the arrays, or a file cannot be written.
  """
  manifests.check_arrays(arrays, root)
  num_values = {}
  sha256 = {}
  for array in arrays:
    values, lengths = items[array.name]
    dtype = np.dtype(array.dtype).newbyteorder("<")
    values = np.asarray(values).astype(dtype, casting="same_kind", copy=False)
    ends = np.cumsum(lengths)
    num_values[array.name] = int(ends[-1])
    values_directory, ends_directory = array_directories(array.name)
    contents = {values_directory: values, ends_directory: ends.astype("<i8")}
    for directory, numbers in contents.items():
      content = numbers.tobytes()
      with _convert_write_errors(root / directory / name):
        (root / directory / name).write_bytes(content)
      sha256[directory] = hashlib.sha256(content).hexdigest()
  return Shard(name, ends.size, num_values, sha256)


def build_metadata(
  shards: Sequence[Shard],
  *,
  name: str,
  split: str,
  arrays: Sequence[Array],
  facts: dict[str, Any],
  skipped: Mapping[str, int],
  source: dict[str, Any],
) -> dict[str, bytes]:
  """Return the tables and the manifest of a store of these shards.

  Args:
    shards: the shards, in order.
    name, split, facts, skipped, source: fields of `Manifest`.
    arrays: the arrays; they need no counts.

  Returns:
    The contents of the files by name, the manifest last.
  """
  tables = store_shards.build_tables(shards, arrays)
  counted_arrays = []
  for array in arrays:
    num_values = sum(shard.values[array.name] for shard in shards)
    counted_arrays.append(dataclasses.replace(array, num_values=num_values))
  manifest = Manifest(
    name=name,
    split=split,
    arrays=counted_arrays,
    facts=facts,
    skipped=dict(sorted(skipped.items())),
    num_items=sum(shard.items for shard in shards),
    num_shards=len(shards),
    name_digits=len(shards[0].name),
    tables={file: hashlib.sha256(content).hexdigest() for file, content in tables.items()},
    source=source,
    fingerprint="",
  )
  manifests.check_manifest(manifest, name)
  manifest = dataclasses.replace(
    manifest, fingerprint=store_shards.fingerprint(manifest, *tables.values())
  )
  return {**tables, manifests.FILE: manifest.to_json().encode()}


def publish(
  work: AnyPath, path: str | os.PathLike, contents: dict[str, bytes], vocabulary: Vocabulary | None
) -> None:
  """Turn a directory of shards into the store at `path`.

  The vocabulary, tables and manifest are written; a local store is flushed and renamed.
  """
  with _convert_write_errors(work):
    if vocabulary:
      vocabulary.save(work / manifests.VOCABULARY)
    for file, content in contents.items():
      (work / file).write_bytes(content)
    if isinstance(work, LocalPath):
      for directory, _, names in os.walk(work):
        for name in names:
          if name.endswith(".tmp"):
            os.unlink(os.path.join(directory, name))  # a process was killed while it wrote
          elif not name.isdigit():
            sync(os.path.join(directory, name))
        sync(directory)
      os.rename(work, path)
      sync(work.parent)


@contextlib.contextmanager
def _convert_write_errors(path: AnyPath):
  """Convert errors of writing, such as a full disk, to a one-line UserError."""
  try:
    yield
  except OSError as error:
    raise UserError(
      f"{path}: cannot be written ({one_line(error)}): free some space or choose another output"
    ) from error
