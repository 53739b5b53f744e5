"""Reads and writes files at an address: `gs://`, `s3://` and `http(s)://` by TensorStore, other schemes by fsspec.

`place` gives local paths and addresses the same interface, the few pathlib methods that preparation and training need.
Object stores write a file whole or not at all, so nothing is renamed at an address. A directory exists while it holds
files. Refused or unanswered requests (429, 5xx, broken connections) are repeated with growing delays.

`s3://` respects `AWS_ENDPOINT_URL` and `AWS_REGION`, so that S3 servers other than Amazon's can be used.
"""

import concurrent.futures
import contextlib
import functools
import os
import pathlib
import posixpath
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import fsspec
from etils import epath

from t5x_like.errors import TransientError, UserError, answered, exit_code, is_transient, one_line, retried
from t5x_like.files import answers, storage
from t5x_like.files.answers import Kind

_ATTEMPT_SECONDS = 60.0
_LOOK_SECONDS = 1.0  # do not check a bucket again within this time of finding it
_AT_ONCE = 32  # requests of fsspec
_ABSENT = b"\x02"  # TensorStore's generation of an absent file
_DRIVERS = ("gcs", "s3", "http")
_CONTEXT = {
  **{f"{d}_request_retries": {"max_retries": 8, "initial_delay": "100ms", "max_delay": "8s"} for d in _DRIVERS},
  **{f"{d}_request_concurrency": {"limit": 128} for d in _DRIVERS},
}


class Answer(NamedTuple):
  """The answer to a read; `state` is "missing" if there is no such file."""

  state: str
  value: bytes = b""


class Objects(Protocol):
  """The files below an address, by key; every request returns a future."""

  def read(self, key: str, part: slice | None = None) -> Any:
    """Read all bytes or a range, as an `Answer`."""

  def write(self, key: str, data: bytes | None) -> Any:
    """Write a whole file, or delete it if `data` is None."""

  def create(self, key: str, data: bytes) -> Any:
    """Write a file unless it exists; False if it exists."""

  def list(self, prefix: str) -> Any:
    """List the keys that begin with a prefix, with their sizes (None if unknown)."""

  def delete(self, prefix: str) -> Any:
    """Delete the files whose keys begin with a prefix."""

  def look(self) -> None:
    """Raise the client's error if the bucket does not exist or must not be listed."""


def opened(url: str) -> Objects:
  """Open the files below `scheme://...`.

  Raises:
    UserError: the address cannot be used.
    TransientError: the address cannot be used now.
  """
  scheme = url.partition("://")[0]
  try:
    return _TensorStore(url) if scheme in ("gs", "s3", "http", "https") else _Fsspec(url)
  except Exception as error:  # each library raises its own types, all meaning that the address cannot be used
    if is_transient(error):
      raise TransientError(f"{url}: cannot be opened now ({one_line(error)[:300]})") from error
    raise UserError(f"{url}: cannot be opened ({one_line(error)[:300]})") from error


class _TensorStore:
  def __init__(self, url: str):
    import tensorstore as ts

    self._ts, self._url, spec = ts, url, url
    parts, endpoint = urllib.parse.urlsplit(url), os.environ.get("AWS_ENDPOINT_URL")
    if parts.scheme == "s3" and endpoint:
      region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
      spec = {"driver": "s3", "bucket": parts.netloc, "path": parts.path.lstrip("/")}
      spec |= {"endpoint": endpoint, "aws_region": region}
    self._files = ts.KvStore.open(spec, context=ts.Context(_CONTEXT)).result()

  def read(self, key: str, part: slice | None = None):
    return self._files.read(key, byte_range=part)

  def write(self, key: str, data: bytes | None):
    return self._files.write(key, data)

  def create(self, key: str, data: bytes):
    return _Then(self._files.write(key, data, if_equal=_ABSENT), lambda stamp: bool(stamp.generation), False)

  def list(self, prefix: str):
    return _Then(self._files.list(self._range(prefix)), lambda keys: {key.decode(): None for key in keys})

  def delete(self, prefix: str):
    return _Then(self.list(prefix), lambda keys: [one.result() for one in [self.write(key, None) for key in keys]])

  def look(self) -> None:
    if self._url.startswith("s3:"):
      self.list("no/such/file/").result(timeout=_ATTEMPT_SECONDS)
    elif self._url.startswith("gs:"):  # TensorStore takes a refused listing of Google's for an empty one
      with contextlib.suppress(ImportError):
        storage.look(fsspec.filesystem("gs", endpoint_url=os.environ.get("TENSORSTORE_GCS_HTTP_URL")), self._url)

  def _range(self, prefix: str):
    return self._ts.KvStore.KeyRange(prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else "")


class _Then(NamedTuple):
  future: Any
  change: Callable[[Any], Any]
  exists: Any = None  # the result if the file exists already

  def result(self, timeout: float | None = None):
    try:
      return self.change(self.future.result(timeout=timeout))
    except Exception as error:
      if self.exists is None or answers.kind(error) is not Kind.EXISTS:
        raise
      return self.exists


class _Fsspec:
  def __init__(self, url: str):
    self._url = url
    self._files, self._root = fsspec.core.url_to_fs(url.rstrip("/"))
    self._pool = _fsspec_pool()

  def read(self, key: str, part: slice | None = None):
    def get() -> Answer:
      try:
        start, end = (part.start, part.stop) if part else (None, None)
        return Answer("value", self._files.cat_file(self._path(key), start, end))
      except FileNotFoundError:
        return Answer("missing")

    return self._pool.submit(get)

  def write(self, key: str, data: bytes | None):
    def put() -> None:
      if data is None:
        with contextlib.suppress(FileNotFoundError):
          self._files.rm_file(self._path(key))
        return
      self._files.makedirs(posixpath.dirname(self._path(key)), exist_ok=True)
      self._files.pipe_file(self._path(key), data)

    return self._pool.submit(put)

  def create(self, key: str, data: bytes):
    def put() -> bool:
      self._files.makedirs(posixpath.dirname(self._path(key)), exist_ok=True)
      self._files.pipe_file(self._path(key), data, mode="create")
      return True

    return _Then(self._pool.submit(put), bool, False)

  def list(self, prefix: str):
    return self._pool.submit(self._find, prefix)

  def delete(self, prefix: str):
    return self._pool.submit(lambda: [self._files.rm_file(self._path(key)) for key in self._find(prefix)])

  def look(self) -> None:
    storage.look(self._files, self._url)

  def _find(self, prefix: str) -> dict[str, int | None]:
    try:
      found = self._files.find(self._path(prefix.rpartition("/")[0]).rstrip("/"), detail=True)
    except FileNotFoundError:
      return {}
    keys = {path[len(self._root) :].lstrip("/"): about.get("size") for path, about in found.items()}
    return {key: size for key, size in keys.items() if key.startswith(prefix)}

  def _path(self, key: str) -> str:
    return f"{self._root.rstrip('/')}/{key}" if key else self._root


def look(files: Objects, url: str, done: str) -> None:
  """Raise an error if a file is missing at an address because its bucket does not exist.

  Args:
    done: `read`, or `listed`, which also raises if the bucket must not be listed.

  Raises:
    UserError, TransientError: the bucket does not exist, must not be listed or does not answer.
  """
  root = url[: (url + "/").index("/", url.index("://") + 3)]
  if time.monotonic() - _looked.get(root, -_LOOK_SECONDS) < _LOOK_SECONDS:
    return
  try:
    retried(files.look, url)
  except Exception as error:
    gone = answers.kind(error) in (Kind.ABSENT, Kind.NO_BUCKET)
    if gone or done == "listed" or exit_code(error) is not None:
      raise answered(error, url, done, Kind.NO_BUCKET if gone else None) from error
  _looked[root] = time.monotonic()


_looked: dict[str, float] = {}  # the time at which each bucket was last found


@functools.cache
def _fsspec_pool() -> concurrent.futures.ThreadPoolExecutor:
  return concurrent.futures.ThreadPoolExecutor(_AT_ONCE)


class Address:
  """A file or directory at an address, with the `pathlib.Path` methods that the package uses.

  An absent file raises FileNotFoundError. Other failures raise the errors of docs/reference/exit-codes.md; temporary
  failures only after two minutes of retries.
  """

  def __init__(self, url: str):
    self._url = url.rstrip("/")
    scheme, _, rest = self._url.partition("://")
    bucket, _, self._key = rest.partition("/")
    self._root = f"{scheme}://{bucket}/"

  def __str__(self) -> str:
    return self._url

  __fspath__ = __str__

  def __lt__(self, other: "Address") -> bool:
    return self._url < other._url

  def __truediv__(self, name: str) -> "Address":
    return Address(f"{self._url}/{name}")

  @property
  def name(self) -> str:
    return posixpath.basename(self._key)

  @property
  def suffix(self) -> str:
    return posixpath.splitext(self._key)[1]

  @property
  def parent(self) -> "Address":
    return Address(self._root + posixpath.dirname(self._key))

  def mkdir(self, **_: bool) -> None:
    pass

  def read_bytes(self) -> bytes:
    answer = self._read()
    if answer.state == "missing":
      raise FileNotFoundError(f"{self}: found no such file")
    return bytes(answer.value)

  def read_text(self) -> str:
    return self.read_bytes().decode()

  def write_bytes(self, data: bytes) -> None:
    self._answer(lambda files: files.write(self._key, data), "written")

  def write_text(self, text: str) -> None:
    self.write_bytes(text.encode())

  def create(self, data: bytes) -> bool:
    """Write the file unless it exists; False if it exists. `data` must differ from call to call."""
    # The answer to a successful write may have been lost; the second attempt then finds the data of the first.
    return self._answer(lambda files: files.create(self._key, data), "written") or self._read() == ("value", data)

  def sizes(self, prefix: str = "") -> dict[str, int | None]:
    """Return the files in this directory whose names begin with a prefix, with their sizes (None if unknown)."""
    found = self._answer(lambda files: files.list(f"{self._key}/{prefix}".lstrip("/")), "listed")
    if not found:
      look(_root(self._root), self._url, "listed")
    return {key[len(self._key) :].lstrip("/"): size for key, size in found.items()}

  def iterdir(self) -> Iterator["Address"]:
    return iter([self / name for name in dict.fromkeys(name.partition("/")[0] for name in self.sizes())])

  def is_dir(self) -> bool:
    return bool(self.sizes())

  def exists(self) -> bool:
    return self._read().state != "missing" or self.is_dir()

  def unlink(self, missing_ok: bool = False) -> None:
    self._answer(lambda files: files.write(self._key, None), "deleted")

  def rmtree(self, missing_ok: bool = False) -> None:
    self._answer(lambda files: files.delete(f"{self._key}/"), "deleted")

  def _read(self) -> Answer:
    found = self._answer(lambda files: files.read(self._key), "read")
    if found.state == "missing":
      look(_root(self._root), self._url, "read")
    return Answer(found.state, bytes(found.value))

  def _answer(self, request: Callable[[Objects], Any], done: str) -> Any:
    files = _root(self._root)
    try:
      return retried(lambda: request(files).result(timeout=_ATTEMPT_SECONDS), self._url)
    except Exception as error:
      # An absent file is an answer; it is an error only if its bucket is absent.
      gone = exit_code(error) is None and answers.kind(error) is Kind.ABSENT
      raise answered(error, self._url, done, Kind.NO_BUCKET if gone else None) from error


@functools.lru_cache(64)
def _root(url: str) -> Objects:
  return opened(url)


Place = pathlib.Path | Address


def place(path: str | os.PathLike) -> Place:
  """Return a local path or an `Address`."""
  path = os.fspath(path)
  if path.startswith("file://"):
    return epath.Path(path.removeprefix("file://"))
  return Address(path) if "://" in path else epath.Path(path)
