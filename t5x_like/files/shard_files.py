"""The files of one directory that hold the shards of a store's arrays.

`local_ranges` reads them from a disk, `remote_ranges` from a URL; `ranges` chooses.
"""

import abc
import hashlib
from collections.abc import Sequence
from typing import Protocol

from t5x_like.errors import UserError, one_line, unreadable_file_error
from t5x_like.files.paths import AnyPath

_READ_BYTES = 2**24  # per request when a whole file is read

Read = tuple[int, int, memoryview]  # shard, first byte, the bytes to fill


class Shards(Protocol):
  """A table of the files that hold the shards of arrays."""

  num_bytes: int

  def file(self, array: str, shard: int) -> str:
    """Return the path of a file, relative to its directory."""

  def size(self, array: str, shard: int) -> int:
    """Return the size of a file in bytes."""


class ShardFiles(abc.ABC):
  """The files of one directory, named by their path relative to it."""

  @abc.abstractmethod
  def fill(self, shards: Shards, array: str, reads: Sequence[Read]) -> None:
    """Read ranges of the shards' files of one array; thread-safe.

    Raises:
      UserError: a file is missing or not readable.
      DamageError: a file is too short.
      TransientError: a file cannot be read now.
    """

  @abc.abstractmethod
  def changed(self, shards: Shards) -> list[tuple[str, int]]:
    """Return array and shard of the files that have changed since they were first opened.

    A file that has only been touched counts as changed, and is returned once.
    """

  def __init__(self, root: AnyPath, remedy: str):
    self._root = root
    self._remedy = remedy

  def name(self, file: str) -> str:
    """Return the full path, for messages."""
    return f"{self._root}/{file}"

  def read(self, file: str) -> bytes | None:
    """Return the contents, or None if the file does not exist."""
    try:
      return (self._root / file).read()
    except OSError as error:
      raise unreadable_file_error(self.name(file), error) from error

  def listing(self, directories: Sequence[str]) -> dict[str, int | None] | None:
    """List the files in directories with their sizes (None if unknown); None if not possible."""
    sizes = {}
    try:
      for directory in directories:
        for name, size in (self._root / directory).sizes().items():
          sizes[f"{directory}/{name}"] = size
      return sizes
    except OSError as error:
      raise UserError(f"{self._root}: cannot be listed ({one_line(error)})") from error
    except UserError as error:
      if "does not support listing" in str(error):  # plain HTTP
        return None
      raise

  def sha256(self, file: str, size: int) -> str:
    """Return the hexadecimal SHA-256 of a file of `size` bytes."""
    digest = hashlib.sha256()
    for start in range(0, size, _READ_BYTES):
      try:
        data = (self._root / file).read(slice(start, min(start + _READ_BYTES, size)))
      except OSError as error:
        raise UserError(
          f"{self.name(file)}: cannot be read ({one_line(error)}): {self._remedy}"
        ) from error
      self._check_exists(file, data)
      digest.update(data)
    return digest.hexdigest()

  def _check_exists(self, file: str, content: bytes | None) -> None:
    """Raise UserError if a read returned None instead of a file's content."""
    if content is None:
      raise UserError(f"{self.name(file)}: found no such file: copy it again or {self._remedy}")
