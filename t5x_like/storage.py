"""A directory of small files and large objects, anywhere: on a local disk, or at any address that fsspec knows.

What an object store promises is little: an object appears whole or not at all, and listings may lag. So nothing here is
renamed, and what must not be half there is committed by one last object. Calls are retried after transient errors.
"""

import contextlib
import errno
import logging
import os
import pathlib
import re
import uuid

import fsspec

from t5x_like.errors import UserError, one_line, retried

_CLIENTS = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs", "az": "adlfs", "abfs": "adlfs", "hf": "huggingface_hub"}


_UNSYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EROFS)  # of file systems that cannot
_ON_DISK = ("file", "local")  # schemes of fsspec for what is a path
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/[^/].*|/?)")
_PROJECT = pathlib.Path(__file__).resolve().parents[1]


def is_remote(path) -> bool:
  return "://" in str(path)


def directory(text, flag: str = "--workdir") -> str:
  """Checks the address of a directory to write to, and returns it without slashes at its end.

  The root of a file system, the home directory and the project's own directory are what remains of a path with a
  variable that is not set, and nothing is ever meant to be written right into them; a home directory that holds a run
  is one. `file:///path` is the path.

  Args:
    text: as the user gave it.
    flag: that it was given by, for the message.
  Raises:
    UserError: the address is empty, a scheme without a bucket, or one of those directories.
  """
  found, told = str(text), f"{flag}={text}"
  mend = "give a directory for the run, such as runs/small or gs://bucket/run"
  if not found.strip():
    raise UserError(f"{told}: found an empty address; is its variable set? {mend}")
  scheme, separator, rest = found.partition("://")
  if separator and scheme.lower() in _ON_DISK:
    return directory(rest, flag)
  if separator:
    bucket = rest.lstrip("/") if scheme == "memory" else rest.partition("/")[0]
    if not scheme or not bucket.strip():
      lacking = "bucket" if scheme else "scheme"
      raise UserError(f"{told}: found no {lacking} in the address; is its variable set? {mend}")
    return found.rstrip("/")
  if match := _ONE_SLASH.fullmatch(found):
    path = match[2].strip("/") or "bucket/run"
    raise UserError(f"{told}: found a scheme without '//', expected {match[1]}://{path} or ./{found} for a directory")
  if found == "~" or found.startswith("~/"):
    raise UserError(f"{told}: the shell has not replaced '~'; write {flag}=$HOME{found[1:]}")
  path = pathlib.Path(found)
  where = pathlib.Path(os.path.realpath(path))
  homes = {os.path.realpath(os.path.expanduser("~")), _PROJECT.as_posix()}
  if where == where.parent or where.as_posix() in homes and not (where / "config.json").exists():
    names = {where.parent: "the root of the file system", _PROJECT: "the project's own directory"}
    name = names.get(where, "the home directory")
    raise UserError(f"{told}: found {name}, expected a directory of its own; is its variable set? {mend}")
  return found.rstrip("/")


def synced(path) -> None:
  """Puts a file, or the names in a directory, on disk, so that they outlast a loss of power."""
  number = os.open(path, os.O_RDONLY)
  try:
    os.fsync(number)
  except OSError as error:
    if error.errno not in _UNSYNCED:
      raise
  finally:
    os.close(number)


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
    """Writes a file; readers see the old one or all of the new one, also after a loss of power."""
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
    made = not temporary.parent.exists()
    temporary.parent.mkdir(parents=True, exist_ok=True)
    try:
      with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
      os.replace(temporary, path)
      synced(temporary.parent)
      if made:
        synced(temporary.parent.parent)
    finally:
      temporary.unlink(missing_ok=True)
