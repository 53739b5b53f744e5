"""A directory of small files and large objects, anywhere: on a local disk, or at any address that fsspec knows.

What an object store promises is little: an object appears whole or not at all, and listings may lag. So nothing here is
renamed, and what must not be half there is committed by one last object. Calls are retried after transient errors.
"""

import contextlib
import logging
import os
import pathlib
import uuid

import fsspec

from t5x_like.errors import UserError, one_line, retried

_CLIENTS = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs", "az": "adlfs", "abfs": "adlfs", "hf": "huggingface_hub"}


def is_remote(path) -> bool:
  return "://" in str(path)


class Storage:
  """A directory; names are relative to it, with slashes.

  Args:
    url: a local path, or `gs://bucket/run`, `s3://…`, `memory://…`.
  Raises:
    UserError: the address needs a package that is not installed, or is not one.
  """

  def __init__(self, url):
    self.url = str(url).rstrip("/")
    try:
      self._files, self._root = fsspec.core.url_to_fs(self.url, use_listings_cache=False, skip_instance_cache=True)
    except (ImportError, ValueError) as error:
      client = _CLIENTS.get(self.url.partition("://")[0])
      mend = f"pip install {client}" if client else "use an address that fsspec knows, or a mounted directory"
      raise UserError(f"{self.url}: cannot be opened ({one_line(error)[:200]}); {mend}") from error
    self._local = not is_remote(self.url)
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs a stack for every error that it also raises

  def where(self, name: str) -> str:
    return f"{self.url}/{name}"

  def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes | None:
    """The bytes of a file, or a range of them; None if there is no such file."""

    def call():
      try:
        return self._files.cat_file(self._path(name), start=start, end=end)
      except (FileNotFoundError, NotADirectoryError):
        return None

    return retried(call, self.where(name))

  def write(self, name: str, data: bytes) -> None:
    """Writes a file; readers see the old one or all of the new one."""
    retried(lambda: self._write(name, data), self.where(name))

  def upload(self, name: str, path) -> None:
    """Writes a file with the content of a local one, of any size."""
    retried(lambda: self._files.put_file(os.fspath(path), self._path(name)), self.where(name))

  def create(self, name: str, data: bytes) -> bool:
    """Writes a file if there is none of this name; False if there is. `data` must differ from call to call."""

    def call():
      if self._local:
        pathlib.Path(self._path(name)).parent.mkdir(parents=True, exist_ok=True)
      try:
        self._files.pipe_file(self._path(name), data, mode="create")
        return True
      except FileExistsError:
        return False

    # The answer to a write that succeeded may have been lost; then the second attempt finds what the first wrote.
    return retried(call, self.where(name)) or self.read(name) == data

  def names(self, directory: str = "") -> list[str]:
    """What is directly in a directory, sorted; [] if there is none."""

    def call():
      self._files.invalidate_cache()
      try:
        found = self._files.ls(self._path(directory), detail=False)
      except (FileNotFoundError, NotADirectoryError):
        return []
      return sorted({name.rstrip("/").rpartition("/")[2] for name in found} - {""})

    return retried(call, self.where(directory))

  def delete(self, name: str) -> None:
    """Removes a file, or a directory with all in it; nothing if there is none."""

    def call():
      self._files.invalidate_cache()
      with contextlib.suppress(FileNotFoundError):
        self._files.rm(self._path(name), recursive=True)

    retried(call, self.where(name))

  def _path(self, name: str) -> str:
    return f"{self._root}/{name}" if name else self._root

  def _write(self, name: str, data: bytes) -> None:
    path = self._path(name)
    if not self._local:
      self._files.pipe_file(path, data)
      return
    temporary = pathlib.Path(f"{path}.{uuid.uuid4().hex[:8]}.tmp")
    temporary.parent.mkdir(parents=True, exist_ok=True)
    try:
      temporary.write_bytes(data)
      os.replace(temporary, path)
    finally:
      temporary.unlink(missing_ok=True)
