"""Where a token store's files are: a local directory (memory maps) or an address TensorStore reads (`gs://`, ...)."""

import contextlib
import hashlib
import os
import pathlib
import stat
import tempfile
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import tensorstore as ts

from t5x_like.data.store.manifest import REMEDY
from t5x_like.errors import UserError, one_line

_READ_BYTES = 2**24
_CACHE_BYTES = 2**27  # inner chunks and shard indexes of a remote store kept in memory


class Files(Protocol):
  """The files of one store, named by their path relative to it."""

  def name(self, file: str) -> str:
    """The full path, for messages."""

  def read(self, file: str) -> bytes | None:
    """The contents, or None where there is no such file."""

  def differs(self, file: str, size: int) -> str | None:
    """What is there instead of a file of `size` bytes, or None if that is what is there."""

  def sha256(self, file: str, size: int) -> str:
    """The hexadecimal SHA-256 of a file of `size` bytes."""

  def array(self, file: str, dtype: str, length: int) -> np.ndarray | ts.TensorStore:
    """The one-dimensional Zarr array at `file`, opened and not yet read."""

  def local(self, directory: str) -> contextlib.AbstractContextManager[pathlib.Path]:
    """A local path with the contents of `directory`."""


def at(path: str) -> Files:
  """The files at a local path or at `scheme://...`; UserError for an address TensorStore cannot open."""
  return RemoteFiles(path) if "://" in path else LocalFiles(path)


class LocalFiles:
  """A directory: arrays are memory maps of their single chunk file."""

  def __init__(self, root: str):
    self._root = pathlib.Path(root)

  def name(self, file: str) -> str:
    return str(self._root / file)

  def read(self, file: str) -> bytes | None:
    try:
      if not stat.S_ISREG(os.stat(self._root / file).st_mode):
        raise OSError("not a regular file")  # reading a pipe would wait for ever
      return (self._root / file).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
      return None
    except OSError as error:
      raise UserError(f"{self.name(file)}: cannot be read ({one_line(error)})") from error

  def differs(self, file: str, size: int) -> str | None:
    try:
      found = os.stat(self._root / file).st_size
    except OSError:
      return "no such file"
    return None if found == size else f"{found} bytes"

  def sha256(self, file: str, size: int) -> str:
    try:
      with open(self._root / file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
      raise UserError(f"{self.name(file)}: cannot be read ({one_line(error)}): {REMEDY}") from error

  def array(self, file: str, dtype: str, length: int) -> np.ndarray:
    path = self._root / file / "c" / "0"
    try:
      return np.asarray(np.memmap(path, np.dtype(dtype).newbyteorder("<"), mode="r", shape=(length,)))
    except (OSError, ValueError) as error:
      raise UserError(f"{path}: cannot be mapped ({one_line(error)}): {REMEDY}") from error

  @contextlib.contextmanager
  def local(self, directory: str) -> Iterator[pathlib.Path]:
    yield self._root / directory


class RemoteFiles:
  """An address read through TensorStore, which fetches only the inner chunks that are asked for."""

  def __init__(self, url: str):
    self._url = url.rstrip("/") + "/"
    self._context = ts.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})
    try:
      self._files = ts.KvStore.open(self._url, context=self._context).result()
    except Exception as error:  # TensorStore raises many types; each means that the address cannot be used
      raise UserError(f"{url}: cannot be opened ({one_line(error)})") from error

  def name(self, file: str) -> str:
    return self._url + file

  def read(self, file: str, part: slice | None = None) -> bytes | None:
    try:
      result = self._files.read(file, byte_range=part).result()
    except Exception as error:
      raise UserError(f"{self.name(file)}: cannot be read ({one_line(error)})") from error
    return None if result.state == "missing" else bytes(result.value)

  def differs(self, file: str, size: int) -> str | None:
    try:
      tail = self.read(file, slice(size - 1, None))  # the last byte and whatever follows it
    except UserError:
      return f"fewer than {size} bytes"
    if tail is None:
      return "no such file"
    return None if len(tail) == 1 else f"{size - 1 + len(tail)} bytes"

  def sha256(self, file: str, size: int) -> str:
    digest = hashlib.sha256()
    for start in range(0, size, _READ_BYTES):
      digest.update(self.read(file, slice(start, min(start + _READ_BYTES, size))) or b"")
    return digest.hexdigest()

  def array(self, file: str, dtype: str, length: int) -> ts.TensorStore:
    spec = {"driver": "zarr3", "kvstore": self._url + file + "/", "recheck_cached_data": "open"}
    try:
      array = ts.open(spec, open=True, read=True, context=self._context).result()
    except Exception as error:
      raise UserError(f"{self.name(file)}: cannot be opened ({one_line(error)}): {REMEDY}") from error
    if array.shape != (length,) or array.dtype.name != dtype:
      raise UserError(
        f"{self.name(file)}: found {array.dtype.name} of shape {array.shape}, expected {dtype} of shape "
        f"({length},): {REMEDY}"
      )
    return array

  @contextlib.contextmanager
  def local(self, directory: str) -> Iterator[pathlib.Path]:
    with tempfile.TemporaryDirectory() as copy:
      for key in self._files.list(ts.KvStore.KeyRange(f"{directory}/", f"{directory}0")).result():
        file = key.decode()
        pathlib.Path(copy, pathlib.PurePosixPath(file).name).write_bytes(self.read(file))
      yield pathlib.Path(copy)
