"""The shards of a store: their places in its arrays, files, sizes and checksums.

A shard holds consecutive items. Each of its arrays has two files: `<array>/<shard>`, the values of
its items one after the other, and `<array>.ends/<shard>`, int64, where the values of each item end.
A file is the plain little-endian
array: element i is at byte i times the element size, so any range is read without an index. Two
  tables beside the manifest, plain arrays too, have one row per shard:

    shards.table       uint64 [shards, 2 + arrays]       name (a number), items, values of each array
    checksums.table    uint8 [shards, 2 * arrays, 32]    SHA-256 of its files: values and ends of each array

Prefix sums of the first table give the beginning of each shard in every array. They are the only
data held per shard: 10^5 shards of one array take 5 MB. The second table is read only to verify
files.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence

import numpy as np

from t5x_like.errors import DamageError, UserError
from t5x_like.store.manifest import FORMAT, REMEDY, Array, Manifest

SHARDS_TABLE = "shards.table"
CHECKSUMS_TABLE = "checksums.table"
_MOST = 2**40  # items or values in a shard


def array_directories(array: str) -> tuple[str, str]:
  """Return the directories of an array's files: values and ends."""
  return array, f"{array}.ends"


@dataclasses.dataclass(frozen=True)
class Shard:
  """A written shard: its items, the values of each array, and the hexadecimal SHA-256 of each file
  by directory."""

  name: str
  items: int
  values: dict[str, int]
  sha256: dict[str, str]


class Shards:
  """The shards S of a store, in order.

  Args:
    names: names of the shards, all with the same number of digits.
    counts_SA: int64 [S, 1 + arrays], the items and the values of each array of each shard.
    arrays: the arrays.

  Attributes:
    first_item: int64 [S + 1], the items before each shard, and the total at the end.
    first_value: int64 [S + 1] by array, likewise for its values.
    dtypes: dtype of the files in each directory.
  """

  def __init__(self, names: Sequence[str], counts_SA: np.ndarray, arrays: Sequence[Array]):
    self._names = names
    firsts_AS = np.zeros((1 + len(arrays), len(names) + 1), np.int64)
    np.cumsum(counts_SA.T, axis=1, out=firsts_AS[:, 1:])
    self.first_item = firsts_AS[0]
    self.first_value = {}
    self.dtypes: dict[str, np.dtype] = {}
    # by directory: contents of its files, bytes of each
    self._firsts: dict[str, tuple[np.ndarray, int]] = {}
    for array, first_value in zip(arrays, firsts_AS[1:], strict=True):
      self.first_value[array.name] = first_value
      values, ends = array_directories(array.name)
      self.dtypes |= {values: np.dtype(array.dtype).newbyteorder("<"), ends: np.dtype("<i8")}
      self._firsts[values] = first_value, array.width * self.dtypes[values].itemsize
      self._firsts[ends] = self.first_item, 8

  def __len__(self) -> int:
    return len(self._names)

  @property
  def roots(self) -> list[str]:
    """The store's directories that hold the files."""
    return list(self.dtypes)

  def file(self, directory: str, shard: int) -> str:
    """Return the path of a file, relative to the store."""
    return f"{directory}/{self._names[shard]}"

  def size(self, directory: str, shard: int) -> int:
    """Return the size of a file in bytes."""
    firsts, size = self._firsts[directory]
    return int(firsts[shard + 1] - firsts[shard]) * size

  def sizes(self) -> dict[str, int]:
    """Return the size of every file in bytes."""
    return {
      self.file(one, shard): self.size(one, shard)
      for one in self.roots
      for shard in range(len(self))
    }

  @property
  def num_bytes(self) -> int:
    """The total size of all files in bytes."""
    return sum(int(firsts[-1]) * size for firsts, size in self._firsts.values())


def build_tables(written: Sequence[Shard], arrays: Sequence[Array]) -> dict[str, bytes]:
  """Return the contents of the tables of written shards, by file."""
  rows = [
    [int(shard.name), shard.items, *(shard.values[array.name] for array in arrays)]
    for shard in written
  ]
  digests = [
    shard.sha256[file]
    for shard in written
    for array in arrays
    for file in array_directories(array.name)
  ]
  return {
    SHARDS_TABLE: np.array(rows, "<u8").tobytes(),
    CHECKSUMS_TABLE: bytes.fromhex("".join(digests)),
  }


def read_shards(manifest: Manifest, table: bytes, where: str) -> Shards:
  """Read the shards from their table; raise UserError if the table is invalid or disagrees with the
  manifest."""
  table_SA = _read(manifest, SHARDS_TABLE, table, "<u8", (2 + len(manifest.arrays),), where)
  counts_SA = table_SA[:, 1:].astype(np.int64)
  if ((table_SA[:, 1:] > _MOST) | (table_SA[:, 1:] < [1, *[0] * len(manifest.arrays)])).any():
    raise UserError(
      f"{where}: found a count out of range, expected items from 1 and at most 2^40 "
      f"of each: {REMEDY}"
    )
  expected = {"num_items": manifest.num_items} | {
    f"{one.name}: num_values": one.num_values for one in manifest.arrays
  }
  for (key, count), found in zip(expected.items(), counts_SA.sum(axis=0).tolist(), strict=True):
    if count != found:
      raise UserError(
        f"{where}: {key}: found {found} in all, expected {count} from the manifest: {REMEDY}"
      )
  names = [f"{name:0{manifest.name_digits}d}" for name in table_SA[:, 0].tolist()]
  return Shards(names, counts_SA, manifest.arrays)


def read_checksums(manifest: Manifest, table: bytes, where: str) -> np.ndarray:
  """Read the checksums, uint8 [S, 2 * arrays, 32]; raise UserError if they disagree with the
  manifest."""
  return _read(manifest, CHECKSUMS_TABLE, table, "u1", (2 * len(manifest.arrays), 32), where)


def _read(
  manifest: Manifest, file: str, table: bytes, dtype: str, row: tuple[int, ...], where: str
) -> np.ndarray:
  found = hashlib.sha256(table).hexdigest()
  expected = manifest.tables.get(file)
  if found != expected:
    raise DamageError(
      f"{where}: found SHA-256 {found[:12]}, expected {str(expected)[:12]} from the manifest: the "
      f"file is corrupt; copy it again or {REMEDY}"
    )
  size = manifest.num_shards * int(np.prod(row)) * np.dtype(dtype).itemsize
  if len(table) != size:
    raise UserError(
      f"{where}: found {len(table)} bytes, expected {size} for {manifest.num_shards} shards of "
      f"{len(manifest.arrays)} arrays: {REMEDY}"
    )
  return np.frombuffer(table, dtype).reshape(manifest.num_shards, *row)


def fingerprint(manifest: Manifest, table: bytes, checksums: bytes) -> str:
  """Hash (SHA-256) everything that determines the content: arrays, facts, and every shard's counts
  and checksums."""
  arrays = [dataclasses.asdict(array) for array in manifest.arrays]
  digest = hashlib.sha256(json.dumps([FORMAT, arrays, manifest.facts], sort_keys=True).encode())
  counts_SA = np.frombuffer(table, "<u8").reshape(manifest.num_shards, -1)[:, 1:]
  digest.update(counts_SA.tobytes())
  digest.update(checksums)
  return digest.hexdigest()
