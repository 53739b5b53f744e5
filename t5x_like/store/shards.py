"""The shards of a token store: their places in the token stream, files, sizes and checksums.

Two tables in NumPy's format beside the manifest have one row per shard:

    shards.npy      uint64 [shards, 3]     name (a number), tokens, documents
    checksums.npy   uint8 [shards, 2, 32]  SHA-256 of its files of tokens and of document ends

Prefix sums of the first table give the beginning of each shard in the stream of tokens and of documents. They are the
only data held per shard: 10^5 shards take 5 MB. The second table is read only to verify files.

A file is one shard of Zarr v3: the plain little-endian array, zeros up to a multiple of 16,384 elements, and the index
that the `sharding_indexed` codec puts at the end of a shard, for inner chunks that are neither compressed nor elided.
Element i is at byte i times the element size, so any range can be read from disk or over the network without an index.
Given a `zarr.json`, any Zarr v3 reader can read the file. The first edition of the format had the same bytes in a
directory per array, so both editions have the same checksums and therefore the same fingerprint.
"""

import dataclasses
import functools
import hashlib
import io
import json
from collections.abc import Sequence

import numpy as np

from t5x_like.errors import DamageError, UserError, one_line
from t5x_like.store.manifest import REMEDY, Manifest

TABLE, CHECKSUMS = "shards.npy", "checksums.npy"
ARRAYS = ("tokens", "document_ends")
INNER_CHUNK = 16384


@dataclasses.dataclass(frozen=True)
class Shard:
  """A written shard: `tokens` ids in `documents` whole documents, and the hexadecimal SHA-256 of each array's file."""

  name: str
  tokens: int
  documents: int
  sha256: dict[str, str]


class Shards:
  """The shards S of a store, in the order of the stream.

  Args:
    names: names of the shards, all with the same number of digits.
    counts_S2: int64 [S, 2], the tokens and documents of each shard.
    dtype: dtype of the tokens.
    pattern: a file's path relative to the store, formatted with `array` and `name`.

  Attributes:
    first_token: int64 [S + 1], the tokens before each shard, and the total at the end.
    first_document: int64 [S + 1], likewise for documents.
    dtypes: dtype of each array, by name.
  """

  def __init__(self, names: Sequence[str], counts_S2: np.ndarray, dtype: str, pattern: str = "%(array)s/%(name)s"):
    self._names = names
    self._around = {array: (pattern % {"array": array, "name": "*"}).split("*") for array in ARRAYS}
    firsts_2S = np.zeros((2, len(names) + 1), np.int64)
    np.cumsum(counts_S2.T, axis=1, out=firsts_2S[:, 1:])
    self.first_token, self.first_document = firsts_2S
    self.dtypes = {"tokens": np.dtype(dtype).newbyteorder("<"), "document_ends": np.dtype("<i8")}

  def __len__(self) -> int:
    return len(self._names)

  def file(self, array: str, shard: int) -> str:
    """Return the path of a file, relative to the store."""
    before, after = self._around[array]
    return before + self._names[shard] + after

  def sizes(self) -> dict[str, int]:
    """Return the size of every file in bytes."""
    return {self.file(array, shard): size for array in ARRAYS for shard, size in enumerate(self._bytes(array).tolist())}

  def size(self, array: str, shard: int) -> int:
    """Return the size of a file in bytes."""
    firsts = self.first_token if array == "tokens" else self.first_document
    return file_bytes(int(firsts[shard + 1] - firsts[shard]), self.dtypes[array].itemsize)

  @property
  def num_bytes(self) -> int:
    """The total size of all files in bytes."""
    return sum(int(self._bytes(array).sum()) for array in ARRAYS)

  @property
  def roots(self) -> list[str]:
    """The store's directories that hold the files."""
    return sorted({self.file(array, 0).partition("/")[0] for array in ARRAYS})

  def _bytes(self, array: str) -> np.ndarray:
    firsts = self.first_token if array == "tokens" else self.first_document
    return file_bytes(np.diff(firsts), self.dtypes[array].itemsize)


def file_bytes(length, itemsize: int):
  """Return the size in bytes of the file of an array of `length` elements; `length` may itself be an array."""
  chunks = -(-length // INNER_CHUNK)
  return chunks * (INNER_CHUNK * itemsize + 16) + 4


def tail(length: int, itemsize: int) -> bytes:
  """Return the bytes after the array in its file: padding, every inner chunk's offset and size, their CRC-32C."""
  chunks, chunk_bytes = -(-length // INNER_CHUNK), INNER_CHUNK * itemsize
  index_C2 = np.empty((chunks, 2), "<u8")
  index_C2[:, 0], index_C2[:, 1] = np.arange(chunks) * chunk_bytes, chunk_bytes
  index = index_C2.tobytes()
  return bytes(chunks * chunk_bytes - length * itemsize) + index + _crc32c(index).to_bytes(4, "little")


def _crc32c(data: bytes) -> int:
  """Compute CRC-32C (Castagnoli), RFC 3720, section 12.1 and appendix B.4."""
  table, crc = _crc32c_table(), 0xFFFFFFFF
  for byte in data:
    crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
  return crc ^ 0xFFFFFFFF


@functools.cache
def _crc32c_table() -> list[int]:
  table = list(range(256))
  for _ in range(8):
    table = [(entry >> 1) ^ (0x82F63B78 if entry & 1 else 0) for entry in table]
  return table


def tables(written: Sequence[Shard]) -> dict[str, bytes]:
  """Return the contents of the tables of written shards, by file."""
  table_S3 = np.array([[int(shard.name), shard.tokens, shard.documents] for shard in written], np.uint64)
  digests = [bytes.fromhex(shard.sha256[array]) for shard in written for array in ARRAYS]
  checksums_SA = np.frombuffer(b"".join(digests), np.uint8).reshape(len(written), len(ARRAYS), 32)
  return {TABLE: _npy(table_S3), CHECKSUMS: _npy(checksums_SA)}


def _npy(array: np.ndarray) -> bytes:
  buffer = io.BytesIO()
  np.save(buffer, array, allow_pickle=False)
  return buffer.getvalue()


def read_shards(manifest: Manifest, table: bytes, where: str) -> Shards:
  """Read the shards from `shards.npy`; raise UserError if the table is invalid or disagrees with the manifest."""
  table_S3 = _read_table(table, np.uint64, (manifest.num_shards, 3), manifest.tables.get(TABLE), where)
  name_S, tokens_S, documents_S = table_S3.astype(np.int64).T
  wrong = np.flatnonzero((documents_S < 1) | (documents_S > tokens_S))
  if wrong.size:
    shard = wrong[0]
    raise UserError(
      f"{where}: row {shard}: found {documents_S[shard]} documents, expected 1 to {tokens_S[shard]} (the shard's "
      f"tokens): {REMEDY}"
    )
  for key, counts_S in (("num_tokens", tokens_S), ("num_documents", documents_S)):
    if getattr(manifest, key) != counts_S.sum():
      raise UserError(
        f"{where}: {key}: found {counts_S.sum()} in all, expected {getattr(manifest, key)} from the manifest: {REMEDY}"
      )
  names = [f"{name:0{manifest.name_digits}d}" for name in name_S.tolist()]
  return Shards(names, np.stack([tokens_S, documents_S], axis=1), manifest.dtype)


def read_checksums(manifest: Manifest, table: bytes, where: str) -> np.ndarray:
  """Read `checksums.npy`, uint8 [S, 2, 32]; raise UserError if it disagrees with the manifest."""
  shape = (manifest.num_shards, len(ARRAYS), 32)
  return _read_table(table, np.uint8, shape, manifest.tables.get(CHECKSUMS), where)


def _read_table(table: bytes, dtype: type, shape: tuple[int, ...], sha256: str | None, where: str) -> np.ndarray:
  found = hashlib.sha256(table).hexdigest()
  if found != sha256:
    raise DamageError(
      f"{where}: found SHA-256 {found[:12]}, expected {str(sha256)[:12]} from the manifest: the file is corrupt; copy "
      f"it again or {REMEDY}"
    )
  try:
    array = np.load(io.BytesIO(table), allow_pickle=False)
  except (ValueError, EOFError) as error:
    raise UserError(f"{where}: not a NumPy array ({one_line(error)}): {REMEDY}") from error
  if array.dtype != dtype or array.shape != shape:
    raise UserError(
      f"{where}: found {array.dtype} of shape {array.shape}, expected {np.dtype(dtype)} of shape {shape}: {REMEDY}"
    )
  return array


def fingerprint(manifest: Manifest, shards: Shards, checksums_SA: np.ndarray) -> str:
  """Hash (SHA-256) what determines the token stream: vocabulary, EOS, dtype, and every shard's counts and checksums.

  Both editions of the format give the same value, so a store rebuilt in the second edition keeps its fingerprint.
  """
  counts_S2 = np.stack([np.diff(shards.first_token), np.diff(shards.first_document)], axis=1).tolist()
  digests = checksums_SA.tobytes().hex()
  content = {
    "format": "t5x_like.token_store.v1",
    "vocabulary": dataclasses.asdict(manifest.vocabulary),
    "append_eos": manifest.append_eos,
    "dtype": manifest.dtype,
    "num_tokens": manifest.num_tokens,
    "num_documents": manifest.num_documents,
    "shards": [
      [*counts, digests[128 * shard : 128 * shard + 64], digests[128 * shard + 64 : 128 * shard + 128]]
      for shard, counts in enumerate(counts_S2)
    ],
  }
  return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
