"""Describe the shards of a store: their positions in its arrays, files, sizes and checksums.

A shard holds consecutive items. Each of its arrays has two files: `<array>/<shard>` contains the
values of the items one after the other, and `<array>.ends/<shard>`, int64, the position at which
the values of each item end. A file is a plain little-endian array: element i is at byte i times the
element size, so any range can be read without an index. Two tables, also plain arrays, have one row
per shard:

    shards.table     uint64 [shards, 2 + arrays]     name (a number), items, values of each array
    checksums.table  uint8 [shards, 2 * arrays, 32]  SHA-256 of the two files of each array

Prefix sums over the first table give the beginning of each shard in every array. Only they and the
names are in memory: 10^5 shards of one array take 5 MB. The second table is read only to verify
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
_MAX_COUNT = 2**40  # items or values in a shard


def array_directories(array: str) -> tuple[str, str]:
  """Return the directories of an array's files: (values, ends)."""
  return array, f"{array}.ends"


@dataclasses.dataclass(frozen=True)
class Shard:
  """A written shard, as a row of each table describes it.

  Attributes:
    name: the name of its files, a decimal number with leading zeros.
    items: the number of items.
    values: the number of values in each array, by the array's name.
    sha256: the hexadecimal SHA-256 of each file, by directory.
  """

  name: str
  items: int
  values: dict[str, int]
  sha256: dict[str, str]


class Shards:
  """The shards S of a store, in order.

  Args:
    names: names of the shards, all with the same number of digits.
    counts_SA: int64 [S, 1 + arrays], each shard's number of items, then of values in each array.
    arrays: the arrays, in the order of the columns.

  Attributes:
    first_item: int64 [S + 1], the number of items before each shard; the last element is the total.
    first_value: by array name, int64 [S + 1], the number of its values before each shard; the last
      element is the total.
    dtypes: dtype of the files in each directory.
  """

  def __init__(self, names: Sequence[str], counts_SA: np.ndarray, arrays: Sequence[Array]):
    self._names = names
    firsts_AS = np.zeros((1 + len(arrays), len(names) + 1), np.int64)
    np.cumsum(counts_SA.T, axis=1, out=firsts_AS[:, 1:])
    self.first_item = firsts_AS[0]
    self.first_value = {}
    self.dtypes: dict[str, np.dtype] = {}
    # By directory: the first element of each shard's file, and the bytes of an element.
    self._first_element: dict[str, np.ndarray] = {}
    self._element_bytes: dict[str, int] = {}
    for array, first_value in zip(arrays, firsts_AS[1:], strict=True):
      self.first_value[array.name] = first_value
      values_directory, ends_directory = array_directories(array.name)
      values_dtype = np.dtype(array.dtype).newbyteorder("<")
      ends_dtype = np.dtype("<i8")
      self.dtypes[values_directory] = values_dtype
      self.dtypes[ends_directory] = ends_dtype
      self._first_element[values_directory] = first_value
      self._first_element[ends_directory] = self.first_item
      self._element_bytes[values_directory] = array.width * values_dtype.itemsize
      self._element_bytes[ends_directory] = ends_dtype.itemsize

  def __len__(self) -> int:
    return len(self._names)

  @property
  def directories(self) -> list[str]:
    """The directories of the shards' files, relative to the store."""
    return list(self.dtypes)

  def file(self, directory: str, shard: int) -> str:
    """Return the path of a shard's file in a directory, relative to the store."""
    return f"{directory}/{self._names[shard]}"

  def size(self, directory: str, shard: int) -> int:
    """Return the size of a shard's file in a directory, in bytes."""
    first_element = self._first_element[directory]
    num_elements = int(first_element[shard + 1] - first_element[shard])
    return num_elements * self._element_bytes[directory]

  def sizes(self) -> dict[str, int]:
    """Return the size of every file in bytes, by path."""
    sizes = {}
    for directory in self.directories:
      for shard in range(len(self)):
        sizes[self.file(directory, shard)] = self.size(directory, shard)
    return sizes

  @property
  def num_bytes(self) -> int:
    """The total size of all files in bytes."""
    total = 0
    for directory, first_element in self._first_element.items():
      total += int(first_element[-1]) * self._element_bytes[directory]
    return total


def build_tables(shards: Sequence[Shard], arrays: Sequence[Array]) -> dict[str, bytes]:
  """Return the two tables that describe written shards, as bytes by file name."""
  rows = []
  checksums = []
  for shard in shards:
    counts = [shard.values[array.name] for array in arrays]
    rows.append([int(shard.name), shard.items, *counts])
    for array in arrays:
      checksums += [shard.sha256[directory] for directory in array_directories(array.name)]
  return {
    SHARDS_TABLE: np.array(rows, "<u8").tobytes(),
    CHECKSUMS_TABLE: bytes.fromhex("".join(checksums)),
  }


def read_shards(manifest: Manifest, table: bytes, where: str) -> Shards:
  """Read the shards from their table.

  Args:
    manifest: the manifest of the store.
    table: the content of `SHARDS_TABLE`.
    where: the path of the table, for messages.

  Raises:
    DamageError: the checksum of the table differs from the manifest's.
    UserError: the table is invalid or disagrees with the manifest.
  """
  num_arrays = len(manifest.arrays)
  table_SA = _read_table(manifest, SHARDS_TABLE, table, "<u8", (2 + num_arrays,), where)
  unsigned_counts_SA = table_SA[:, 1:]
  has_empty_shard = (unsigned_counts_SA[:, 0] == 0).any()
  if has_empty_shard or (unsigned_counts_SA > _MAX_COUNT).any():
    raise UserError(
      f"{where}: found a count out of range, expected 1 to 2^40 items and at most 2^40 values in a "
      f"shard: {REMEDY}"
    )
  counts_SA = unsigned_counts_SA.astype(np.int64)
  expected = {"num_items": manifest.num_items}
  for array in manifest.arrays:
    expected[f"{array.name}: num_values"] = array.num_values
  totals = counts_SA.sum(axis=0).tolist()
  for (key, count), total in zip(expected.items(), totals, strict=True):
    if count != total:
      raise UserError(
        f"{where}: {key}: found {total} in all, expected {count} from the manifest: {REMEDY}"
      )
  names = [f"{name:0{manifest.name_digits}d}" for name in table_SA[:, 0].tolist()]
  return Shards(names, counts_SA, manifest.arrays)


def read_checksums(manifest: Manifest, table: bytes, where: str) -> np.ndarray:
  """Read the SHA-256 of every file from their table: uint8 [S, 2 * arrays, 32].

  Args:
    manifest: the manifest of the store.
    table: the content of `CHECKSUMS_TABLE`.
    where: the path of the table, for messages.

  Raises:
    DamageError: the checksum of the table differs from the manifest's.
    UserError: the size of the table does not fit the manifest.
  """
  return _read_table(manifest, CHECKSUMS_TABLE, table, "u1", (2 * len(manifest.arrays), 32), where)


def _read_table(
  manifest: Manifest, file: str, table: bytes, dtype: str, row_shape: tuple[int, ...], where: str
) -> np.ndarray:
  """Read a table of a store as an array [shards, *row_shape].

  Raises:
    DamageError: its checksum differs from the manifest's.
    UserError: its size does not fit the manifest.
  """
  checksum = hashlib.sha256(table).hexdigest()
  expected = manifest.tables.get(file)
  if checksum != expected:
    raise DamageError(
      f"{where}: found SHA-256 {checksum[:12]}, expected {str(expected)[:12]} from the manifest: "
      f"the file is corrupt; copy it again or {REMEDY}"
    )
  size = manifest.num_shards * int(np.prod(row_shape)) * np.dtype(dtype).itemsize
  if len(table) != size:
    raise UserError(
      f"{where}: found {len(table)} bytes, expected {size} for {manifest.num_shards} shards of "
      f"{len(manifest.arrays)} arrays: {REMEDY}"
    )
  return np.frombuffer(table, dtype).reshape(manifest.num_shards, *row_shape)


def fingerprint(manifest: Manifest, table: bytes, checksums: bytes) -> str:
  """Return the SHA-256 of everything that determines a store's content.

  It covers the format's version, the arrays, the facts, and every shard's counts and checksums.

  Args:
    manifest: the manifest of the store.
    table: the content of `SHARDS_TABLE`.
    checksums: the content of `CHECKSUMS_TABLE`.
  """
  arrays = [dataclasses.asdict(array) for array in manifest.arrays]
  digest = hashlib.sha256(json.dumps([FORMAT, arrays, manifest.facts], sort_keys=True).encode())
  counts_SA = np.frombuffer(table, "<u8").reshape(manifest.num_shards, -1)[:, 1:]
  digest.update(counts_SA.tobytes())
  digest.update(checksums)
  return digest.hexdigest()
