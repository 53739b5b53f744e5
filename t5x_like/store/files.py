"""The interface to a token store's files, in a local directory or at an address (`gs://`, `s3://`, ...)."""

import contextlib
import pathlib
from collections.abc import Sequence
from typing import Protocol

from t5x_like.store.local_files import LocalFiles
from t5x_like.store.shards import Shards

Read = tuple[int, int, memoryview]  # shard, first byte, the bytes to fill


class Files(Protocol):
  """The files of one store, named by their path relative to it."""

  def name(self, file: str) -> str:
    """Return the full path, for messages."""

  def read(self, file: str) -> bytes | None:
    """Return the contents, or None if the file does not exist."""

  def listing(self, directories: Sequence[str]) -> dict[str, int | None] | None:
    """List the files in directories with their sizes (None if unknown); return None if listing is not possible."""

  def sha256(self, file: str, size: int) -> str:
    """Return the hexadecimal SHA-256 of a file of `size` bytes."""

  def fill(self, shards: Shards, array: str, reads: Sequence[Read]) -> None:
    """Read ranges of the shards' files of one array; thread-safe.

    Raises:
      UserError: a file is missing or not readable.
      DamageError: a file is too short.
      TransientError: a file cannot be read now.
    """

  def local(self, directory: str) -> contextlib.AbstractContextManager[pathlib.Path]:
    """Provide a local path with the contents of `directory`."""


def at(path: str) -> Files:
  """Return the files at a local path or at `scheme://...`; raise UserError if the address cannot be opened."""
  if path.startswith("file://"):
    return LocalFiles(path.removeprefix("file://"))
  if "://" not in path:
    return LocalFiles(path)
  from t5x_like.store.remote_files import RemoteFiles

  return RemoteFiles(path)
