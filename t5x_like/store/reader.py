"""Read a store: named ragged arrays with values for each of its items, read by index.

    <path>/manifest.json          arrays, counts, checksums of the tables, fingerprint
    <path>/shards.table           items of each shard, and values of each array in it
    <path>/checksums.table        SHA-256 of each file
    <path>/vocabulary/            the vocabulary of the ids, if there are any
    <path>/<array>/00000000       values, one item after the other
    <path>/<array>.ends/00000000  where the values of each item end in this shard

Stores of tokens (`tokens.py`), examples and images are all of this form; `manifest.py` and
`shards.py` describe the files. A range of values is one ranged read, from a local file or over the
network. Only the table of shards is held in memory. Opening reads the manifest and the table and
lists the files once, regardless of their size. Verifying the checksums is optional and reads every
byte once, in parallel.
"""

import concurrent.futures
import functools
import os
import pathlib
import time
import weakref
from typing import Literal, Self, get_args

import numpy as np

from t5x_like import vocabularies
from t5x_like.errors import DamageError, UserError, did_you_mean
from t5x_like.files import ranges
from t5x_like.files.shard_files import ShardFiles
from t5x_like.store import manifest as manifests
from t5x_like.store import shards as store_shards
from t5x_like.store.manifest import REMEDY, Manifest
from t5x_like.store.shards import CHECKSUMS_TABLE, SHARDS_TABLE, Shards, array_directories

Verify = Literal["auto", "full", "size"]
FULL_VERIFY_BYTES = 2 * 2**30  # "auto" checks every byte of stores up to this size
_open_stores: "weakref.WeakSet[Store]" = weakref.WeakSet()


class Store:
  """An open store; open it with `Store.open`.

  Attributes:
    path: the path given to `open`.
    manifest: the checked manifest.
    verification: a description of the checks that `open` made.
  """

  def __init__(
    self,
    path: str,
    files: ShardFiles,
    text: bytes,
    manifest: Manifest,
    shards: Shards,
    verification: str,
  ):
    self.path = path
    self.manifest = manifest
    self.verification = verification
    self._files = files
    self._text = text
    self._shards = shards
    self._widths = {array.name: array.width for array in manifest.arrays}
    _open_stores.add(self)

  @classmethod
  def open(cls, path: str | os.PathLike, verify: Verify = "auto") -> Self:
    """Open a store.

    Args:
      path: the directory, local or `scheme://`.
      verify: `size` checks that every file exists and has the expected size; `full` also checks
        every checksum; `auto` is `full` for stores up to 2 GiB, otherwise `size`.

    Raises:
      UserError: the store or a file is missing, or its manifest or table is malformed or
        inconsistent.
      DamageError: a file is truncated or (full) corrupt; the message names it.
    """
    if verify not in get_args(Verify):
      raise UserError(f"verify: found {verify!r}, expected one of {', '.join(get_args(Verify))}")
    path = os.fspath(path)
    files = ranges.open_shard_files(path, REMEDY)
    text = files.read(manifests.FILE)
    if text is None:
      raise UserError(missing_store_message(path))
    manifest = manifests.parse(text, files.name(manifests.FILE))
    table = _table(files, SHARDS_TABLE)
    shards = store_shards.read_shards(manifest, table, files.name(SHARDS_TABLE))
    full = verify == "full" or (verify == "auto" and shards.num_bytes <= FULL_VERIFY_BYTES)
    verification = _verify(files, manifest, shards, table if full else None)
    return cls(path, files, text, manifest, shards, verification)

  def is_current(self) -> bool:
    """Return whether the manifest at `path` is unchanged since opening."""
    return self._files.read(manifests.FILE) == self._text

  def check_unchanged(self) -> None:
    """Check the content of the files that were read and have changed since.

    This takes one `stat` for each file on a disk.

    Raises:
      DamageError: a file no longer has the content that the store was made with; names it.
    """
    changed = self._files.changed(self._shards)
    if not changed:
      return
    table = _table(self._files, CHECKSUMS_TABLE)
    checksums_SF = store_shards.read_checksums(
      self.manifest, table, self._files.name(CHECKSUMS_TABLE)
    )
    for directory, shard in changed:
      _verify_checksum(self._files, self._shards, checksums_SF, shard, directory)

  @property
  def name(self) -> str:
    return self.manifest.name

  @property
  def num_items(self) -> int:
    return self.manifest.num_items

  @property
  def fingerprint(self) -> str:
    return self.manifest.fingerprint

  @property
  def first_items(self) -> np.ndarray:
    """The number of items before each shard, and the total at the end: int64 [num_shards + 1]."""
    return self._shards.first_item

  @functools.cached_property
  def vocabulary(self) -> vocabularies.Vocabulary:
    """The vocabulary saved with the store; UserError if it does not match the manifest."""
    path = self._files.name(manifests.VOCABULARY)
    vocabulary = vocabularies.load(path)
    facts = manifests.vocabulary_facts(vocabulary)
    expected = self.manifest.facts.get("vocabulary")
    if facts != expected:
      raise UserError(f"{path}: found {facts}, expected {expected} from {manifests.FILE}: {REMEDY}")
    return vocabulary

  def read_ranges(self, array: str, starts_N: np.ndarray, sizes_N: np.ndarray) -> np.ndarray:
    """Read ranges of an array's values, across the bounds of items and shards.

    Args:
      array: the name of the array.
      starts_N: int64 [N], the first value of each range.
      sizes_N: int64 [N], the number of its values.

    Returns:
      The values [n] of all ranges, one after the other, or [n, width] where the array has rows.

    Raises:
      ValueError: a range is not inside the array.
      UserError: a shard can no longer be read.
      DamageError: a shard is truncated.
    """
    firsts = self._shards.first_value[array]
    width = self._widths[array]
    ends_N = starts_N + sizes_N
    is_inside_N = (starts_N >= 0) & (starts_N <= ends_N) & (ends_N <= firsts[-1])
    if not is_inside_N.all():
      raise ValueError(f"{array}: {starts_N.min()}..{ends_N.max()} outside 0..{firsts[-1]}")
    values = np.empty(int(sizes_N.sum()) * width, self._shards.dtypes[array])
    if values.size:
      buffer = memoryview(values).cast("B")
      reads = self._plan_reads(firsts, starts_N, sizes_N, width * values.itemsize, buffer)
      self._files.fill(self._shards, array, reads)
    return values if width == 1 else values.reshape(-1, width)

  def _plan_reads(
    self,
    firsts: np.ndarray,
    starts_N: np.ndarray,
    sizes_N: np.ndarray,
    value_bytes: int,
    buffer: memoryview,
  ) -> list[tuple[int, int, memoryview]]:
    """Divide ranges at the bounds of shards.

    Args:
      firsts: the first value of each shard, and the total.
      starts_N, sizes_N: the ranges.
      value_bytes: the size of a value.
      buffer: the buffer for all ranges, one after the other.

    Returns:
      (shard, offset in bytes, its part of the buffer) for each read.
    """
    shard_N = np.searchsorted(firsts, starts_N, side="right") - 1
    shard_N = np.minimum(shard_N, len(self._shards) - 1)
    offset_N = value_bytes * (starts_N - firsts[shard_N])
    remaining_N = value_bytes * (firsts[shard_N + 1] - starts_N)
    size_N = value_bytes * sizes_N
    columns = [column_N.tolist() for column_N in (shard_N, offset_N, remaining_N, size_N)]
    reads = []
    position = 0
    for shard, offset, remaining, size in zip(*columns, strict=True):
      while size > remaining:
        if remaining:
          reads.append((shard, offset, buffer[position : position + remaining]))
        position += remaining
        size -= remaining
        shard += 1
        offset = 0
        remaining = value_bytes * int(firsts[shard + 1] - firsts[shard])
      if size:
        reads.append((shard, offset, buffer[position : position + size]))
        position += size
    return reads

  def read_padded(
    self, array: str, starts_N: np.ndarray, sizes_N: np.ndarray, length: int
  ) -> np.ndarray:
    """Read ranges of at most `length` values as rows, padded with 0: int32 [N, length].

    See `read_ranges`.
    """
    rows_NL = np.zeros((sizes_N.size, length), np.int32)
    rows_NL[np.arange(length) < sizes_N[:, None]] = self.read_ranges(array, starts_N, sizes_N)
    return rows_NL

  def read_values(self, array: str) -> np.ndarray:
    """Read all values of an array: [n] or [n, width]."""
    return self.read_ranges(array, np.zeros(1, np.int64), self._shards.first_value[array][-1:])

  def read_ends(self, array: str) -> np.ndarray:
    """Read where the values of every item end in an array: int64 [num_items], all in memory.

    Raises:
      DamageError: the ends do not ascend to the number of values.
    """
    shards = self._shards
    directory = array_directories(array)[1]
    ends_N = np.empty(self.num_items, "<i8")
    data = memoryview(ends_N).cast("B")
    bounds = (8 * shards.first_item).tolist()
    reads = [(shard, 0, data[bounds[shard] : bounds[shard + 1]]) for shard in range(len(shards))]
    self._files.fill(shards, directory, reads)
    ends_N += np.repeat(shards.first_value[array][:-1], np.diff(shards.first_item))
    last_S = ends_N[shards.first_item[1:] - 1]
    ascends = ends_N[0] >= 0 and (ends_N[1:] >= ends_N[:-1]).all()
    if not ascends or (last_S != shards.first_value[array][1:]).any():
      raise DamageError(
        f"{self._files.name(directory)}: found ends that do not ascend to the last value of a "
        f"shard: copy it again or {REMEDY}"
      )
    return ends_N


def _table(files: ShardFiles, file: str) -> bytes:
  """Return the content of a table; raise UserError if there is no such file."""
  table = files.read(file)
  if table is None:
    raise UserError(f"{files.name(file)}: found no such file: copy it again or {REMEDY}")
  return table


def _verify(files: ShardFiles, manifest: Manifest, shards: Shards, table: bytes | None) -> str:
  """Check that all files exist, and their contents if `table` is given.

  Args:
    files: the files of the store.
    manifest: its manifest.
    shards: its shards.
    table: the content of `SHARDS_TABLE`, for a check of all checksums; None checks sizes only.

  Returns:
    A description of the check.
  """
  begin = time.monotonic()
  checked = _verify_sizes(files, shards)
  if table is None:
    checked += " (verify=full would check the checksums)"
  else:
    checked = "all checksums"
    checksums_table = _table(files, CHECKSUMS_TABLE)
    checksums_SF = store_shards.read_checksums(
      manifest, checksums_table, files.name(CHECKSUMS_TABLE)
    )
    _verify_checksums(files, shards, checksums_SF)
    fingerprint = store_shards.fingerprint(manifest, table, checksums_SF.tobytes())
    if fingerprint != manifest.fingerprint:
      raise UserError(
        f"{files.name(manifests.FILE)}: fingerprint: found {manifest.fingerprint[:12]!r}, but the "
        f"content gives {fingerprint[:12]!r}; {REMEDY}"
      )
  return (
    f"checked {checked}: {len(shards.sizes())} files, {shards.num_bytes / 1e6:.1f} MB in "
    f"{time.monotonic() - begin:.2f} s"
  )


def _verify_sizes(files: ShardFiles, shards: Shards) -> str:
  """Check that all files exist and have the expected sizes, as far as they are listed.

  Returns:
    A description of the check.
  """
  listed_sizes = files.listing(shards.directories)
  if listed_sizes is None:
    return "nothing but the manifest, as this address cannot be listed"
  problem = "the file is missing or truncated; copy it again or"
  for file, expected in shards.sizes().items():
    if file not in listed_sizes:
      raise UserError(
        f"{files.name(file)}: found no such file, expected {expected} bytes: {problem} {REMEDY}"
      )
    size = listed_sizes[file]
    if size not in (expected, None):
      raise DamageError(
        f"{files.name(file)}: found {size} bytes, expected {expected} bytes: {problem} {REMEDY}"
      )
  return "that every file is there" if None in listed_sizes.values() else "file sizes"


def _verify_checksum(
  files: ShardFiles, shards: Shards, checksums_SF: np.ndarray, shard: int, directory: str
) -> None:
  """Compare a file's SHA-256 with the store's table; raise DamageError if they differ."""
  file = shards.file(directory, shard)
  expected = checksums_SF[shard, list(shards.directories).index(directory)].tobytes().hex()
  digest = files.sha256(file, shards.size(directory, shard))
  if digest != expected:
    raise DamageError(
      f"{files.name(file)}: found SHA-256 {digest[:12]}, expected {expected[:12]}: the file is "
      f"corrupt; copy it again or {REMEDY}"
    )


def check_unchanged() -> None:
  """Check all open stores of the process for files that changed while they were read.

  See `Store.check_unchanged`.
  """
  for store in list(_open_stores):
    store.check_unchanged()


def _verify_checksums(files: ShardFiles, shards: Shards, checksums_SF: np.ndarray) -> None:
  """Verify all files of a store in parallel."""
  with concurrent.futures.ThreadPoolExecutor(min(16, 2 * (os.cpu_count() or 1))) as pool:
    checks = [
      pool.submit(_verify_checksum, files, shards, checksums_SF, shard, directory)
      for shard in range(len(shards))
      for directory in shards.directories
    ]
    try:
      for check in checks:
        check.result()
    finally:
      pool.shutdown(cancel_futures=True)


def missing_store_message(path: str) -> str:
  """Return the message for a path without a manifest: its content, and how to make a store."""
  directory = pathlib.Path(path)
  content = "no such directory"
  output = "DIR"
  if "://" not in path and directory.parent.is_file():
    content = f"{directory.parent} is a file, not a directory"  # the output must not replace it
  elif "://" not in path:
    content = _describe_missing_store(directory)
    output = str(directory.parent)
  return (
    f"{path}: no token store ({content}): make one with python -m tools.prepare_data --source=... "
    f"--vocabulary=... --output={output}"
  )


def _describe_missing_store(directory: pathlib.Path) -> str:
  """Describe the content of a local path without a manifest, or suggest the names meant."""
  root = directory.parent
  if directory.is_dir():
    content = f"a directory without {manifests.FILE}"
  elif _list_splits(root):
    content = f"no such split; there are {', '.join(_list_splits(root))}"
  elif not root.exists() and root.parent.is_dir():
    siblings = [child for child in root.parent.iterdir() if child.is_dir() and _list_splits(child)]
    candidates = [str(root.parent / child.name) for child in siblings]
    content = f"no such directory{did_you_mean(str(root), ['builtin', *candidates])}"
  else:
    content = "no such directory"
  if directory.with_name(f".{directory.name}.incomplete").exists():
    content += "; an unfinished store exists, and the same prepare_data command finishes it"
  return content


def _list_splits(root: pathlib.Path) -> list[str]:
  """Return the names of the splits of a local store."""
  try:
    return sorted(child.name for child in root.iterdir() if (child / manifests.FILE).is_file())
  except OSError:
    return []
