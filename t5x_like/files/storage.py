"""A directory of small files and large objects, on a local disk or at any address that fsspec knows.

An object store promises little: an object appears whole or not at all, and listings may lag. So nothing here is
renamed, and a set of objects is committed by writing one last object. Calls are retried after transient errors.
"""

import errno
import logging
import os
import pathlib
import re
import uuid
from collections.abc import Callable
from typing import TypeVar

import fsspec

from t5x_like.errors import DamageError, UserError, answered, exit_code, one_line, retried
from t5x_like.files import answers
from t5x_like.files.answers import Kind

_T = TypeVar("_T")

_CLIENTS = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs", "az": "adlfs", "abfs": "adlfs", "hf": "huggingface_hub"}


_UNSYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EROFS)  # of file systems without fsync
_ON_DISK = ("file", "local")  # fsspec's schemes for local paths
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/[^/].*|/?)")
_PROJECT = pathlib.Path(__file__).resolve().parents[1]


def is_remote(path) -> bool:
  return "://" in str(path)


def directory(text, flag: str = "--workdir") -> str:
  """Check the address of a directory to write to, and return it without trailing slashes.

  Refuse the root of a file system, the home directory and the project's own directory: nobody means to write a run
  right into them, and they are typically the remains of a path with an unset variable. A home or project directory
  that already holds a run is accepted. `file:///path` becomes the path.

  Args:
    text: the address as the user gave it.
    flag: the flag that gave it, for the message.
  Raises:
    UserError: the address is empty, is a scheme without a bucket, or is one of these directories.
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
  """Flush a file, or a directory's entries, to disk, so that they survive a power failure."""
  number = os.open(path, os.O_RDONLY)
  try:
    os.fsync(number)
  except OSError as error:
    if error.errno not in _UNSYNCED:
      raise
  finally:
    os.close(number)


def look(files: fsspec.AbstractFileSystem, url: str) -> None:
  """Query the bucket of a Google or Amazon address; raise the client's error if it does not exist."""
  scheme, _, path = url.partition("://")
  bucket = path.partition("/")[0]
  files.invalidate_cache()
  if scheme in ("gs", "gcs"):
    files.ls(bucket, detail=False, max_results=1)
  elif scheme in ("s3", "s3a"):
    files.call_s3("head_bucket", Bucket=bucket)


class Storage:
  """A directory; names are relative to it, with slashes.

  Args:
    url: a local path, or `gs://bucket/run`, `s3://…`, `memory://…`.
  Raises:
    UserError: the address is invalid, or needs a package that is not installed.
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
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs a traceback for every error, and raises it too

  def where(self, name: str) -> str:
    return f"{self.url}/{name}"

  def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes | None:
    """Return the bytes of a file, or of a range in it; None if there is no such file.

    Raises:
      DamageError: the range begins past the end of the file.
    """
    return self._answer(lambda: self._files.cat_file(self._path(name), start=start, end=end), name, "read")

  def exists(self, name: str) -> bool:
    """Return whether a file exists, even an empty one."""
    try:
      return self.read(name, 0, 1) is not None
    except DamageError:  # the file is empty, so the range begins past its end
      return True

  def write(self, name: str, data: bytes) -> None:
    """Write a file atomically: readers see the old or the complete new content, even after a power failure."""
    self._answer(lambda: self._write(name, data), name, "written")

  def upload(self, name: str, path) -> None:
    """Write a file with the content of a local file of any size."""
    self._answer(lambda: self._files.put_file(os.fspath(path), self._path(name)), name, "written")

  def create(self, name: str, data: bytes) -> bool:
    """Write a file unless the name exists; return whether it was written. `data` must differ from call to call."""

    def call():
      if self._local:
        pathlib.Path(self._path(name)).parent.mkdir(parents=True, exist_ok=True)
      try:
        self._files.pipe_file(self._path(name), data, mode="create")
        return True
      except Exception as error:
        if answers.kind(error) is Kind.EXISTS:
          return False
        raise

    # The reply to a successful write may have been lost; the second attempt then finds the data of the first.
    return self._answer(call, name, "written") or self.read(name) == data

  def names(self, directory: str = "") -> list[str]:
    """Return the sorted names of a directory's direct entries; [] if there is no such directory."""

    def call():
      self._files.invalidate_cache()
      return self._files.ls(self._path(directory), detail=False)

    found = self._answer(call, directory, "listed") or []
    return sorted({name.rstrip("/").rpartition("/")[2] for name in found} - {""})

  def delete(self, name: str) -> None:
    """Delete a file, or a directory with its contents; do nothing if it does not exist."""

    def call():
      self._files.invalidate_cache()
      self._files.rm(self._path(name), recursive=True)

    self._answer(call, name, "deleted")

  def _answer(self, call: Callable[[], _T], name: str, done: str) -> _T | None:
    """Return `call()`, retrying after transient errors; None if the name does not exist.

    Raises:
      OSError: from a local disk.
      UserError, DamageError, TransientError: from an object store; see docs/reference/exit-codes.md.
    """
    where = self.where(name) if name else self.url
    try:
      return retried(call, where)
    except Exception as error:
      absent = exit_code(error) is None and answers.kind(error) is Kind.ABSENT
      if absent and done != "written":
        if not self._local:
          self._check_bucket(where, done, error)
        return None
      if self._local:
        raise
      # Writing to an existing bucket never yields "absent", so the bucket must be missing.
      raise answered(error, where, done, Kind.NO_BUCKET if absent else None) from error

  def _check_bucket(self, where: str, done: str, absent: Exception) -> None:
    """Raise UserError if a file is absent because its bucket is; a bucket that may not be listed counts as present.

    Clients report an absent bucket like an absent file.
    """
    try:
      retried(lambda: look(self._files, self.url), where)
    except Exception as error:
      if exit_code(error) is not None:
        raise
      if answers.kind(error) in (Kind.ABSENT, Kind.NO_BUCKET):
        raise answered(error, where, done, Kind.NO_BUCKET) from absent

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
