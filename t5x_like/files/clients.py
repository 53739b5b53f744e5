"""The clients of object stores: one serves a scheme, whoever asks.

TensorStore serves `gs://`, `s3://` and `http(s)://`; fsspec serves every other scheme. TensorStore knows neither the
size of an object nor patterns, and takes a refused listing of Google's for an empty one, so fsspec answers these
questions for every scheme (`asked`).

`s3://` respects `AWS_ENDPOINT_URL` and `AWS_REGION`, so that S3 servers other than Amazon's can be used.
"""

import concurrent.futures
import contextlib
import functools
import logging
import os
import posixpath
import urllib.parse
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import fsspec

from t5x_like.errors import TransientError, UserError, is_transient, one_line
from t5x_like.files import answers
from t5x_like.files.answers import Kind

Part = slice | None  # a range of a file's bytes; None is the whole file

TENSORSTORE = ("gs", "s3", "http", "https")
_PACKAGES = {"gs": "gcsfs", "s3": "s3fs", "az": "adlfs", "abfs": "adlfs", "hf": "huggingface_hub", "http": "aiohttp"}
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


class Client(Protocol):
  """The files below an address, by key; every request returns a future."""

  def read(self, key: str, part: Part = None) -> Any:
    """Read all bytes or a range, as an `Answer`."""

  def write(self, key: str, data: bytes | None) -> Any:
    """Write a whole file, or delete it if `data` is None."""

  def create(self, key: str, data: bytes) -> Any:
    """Write a file unless it exists; False if it exists."""

  def find(self, prefix: str) -> Any:
    """List the keys that begin with a prefix, with their sizes (None if unknown)."""


class _TensorStore:
  def __init__(self, url: str):
    import tensorstore as ts

    self._ts, spec = ts, url
    parts, endpoint = urllib.parse.urlsplit(url), os.environ.get("AWS_ENDPOINT_URL")
    if parts.scheme == "s3" and endpoint:
      region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
      spec = {"driver": "s3", "bucket": parts.netloc, "path": parts.path.lstrip("/")}
      spec |= {"endpoint": endpoint, "aws_region": region}
    self._files = ts.KvStore.open(spec, context=ts.Context(_CONTEXT)).result()

  def read(self, key: str, part: Part = None):
    return self._files.read(key, byte_range=part)

  def write(self, key: str, data: bytes | None):
    return self._files.write(key, data)

  def create(self, key: str, data: bytes):
    return _Then(self._files.write(key, data, if_equal=_ABSENT), lambda stamp: bool(stamp.generation), False)

  def find(self, prefix: str):
    keys = self._ts.KvStore.KeyRange(prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else "")
    return _Then(self._files.list(keys), lambda keys: {key.decode(): None for key in keys})


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
  """Serves its schemes, and every scheme where TensorStore does not know the answer.

  Attributes:
    files: fsspec's file system.
  """

  def __init__(self, url: str):
    self.url = url
    self.files, root = fsspec.core.url_to_fs(url, skip_instance_cache=True)
    self._root = root.rstrip("/")
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs a traceback for every error, and raises it too

  def path(self, key: str) -> str:
    return f"{self._root}/{key}".rstrip("/") if self._root else key

  def read(self, key: str, part: Part = None):
    def get() -> Answer:
      try:
        start, end = (part.start, part.stop) if part else (None, None)
        return Answer("value", self.files.cat_file(self.path(key), start, end))
      except Exception as error:
        if answers.kind(error) is not Kind.ABSENT:
          raise
        return Answer("missing")

    return _pool().submit(get)

  def write(self, key: str, data: bytes | None):
    def put() -> None:
      if data is None:
        with contextlib.suppress(FileNotFoundError):
          self.files.rm_file(self.path(key))
      else:
        self.files.makedirs(posixpath.dirname(self.path(key)), exist_ok=True)
        self.files.pipe_file(self.path(key), data)

    return _pool().submit(put)

  def create(self, key: str, data: bytes):
    def put() -> bool:
      self.files.makedirs(posixpath.dirname(self.path(key)), exist_ok=True)
      self.files.pipe_file(self.path(key), data, mode="create")
      return True

    return _Then(_pool().submit(put), bool, False)

  def find(self, prefix: str):
    def listed() -> dict[str, int | None]:
      self.files.invalidate_cache()
      try:
        found = self.files.find(self.path(prefix.rpartition("/")[0]), detail=True)
      except FileNotFoundError:
        return {}
      keys = {path[len(self._root) :].lstrip("/"): about.get("size") for path, about in found.items()}
      return {key: size for key, size in keys.items() if key.startswith(prefix)}

    return _pool().submit(listed)

  def matches(self, pattern: str) -> list[str]:
    self.files.invalidate_cache()
    return sorted(path[len(self._root) :].lstrip("/") for path in self.files.glob(self.path(pattern)))

  def look(self) -> None:
    """Query the bucket of a Google or Amazon address; raise the client's error if it must not be listed."""
    scheme, _, path = self.url.partition("://")
    bucket = path.partition("/")[0]
    self.files.invalidate_cache()
    if scheme == "gs":
      self.files.ls(bucket, detail=False, max_results=1)
    elif scheme == "s3":
      self.files.call_s3("head_bucket", Bucket=bucket)


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
  return concurrent.futures.ThreadPoolExecutor(_AT_ONCE)


@functools.lru_cache(64)
def client(root: str) -> Client:
  """Return the client of the files below `scheme://bucket/`.

  Raises:
    UserError: the address cannot be used, or needs a package that is not installed.
    TransientError: the address cannot be used now.
  """
  return _opened(root, _TensorStore) if root.partition("://")[0] in TENSORSTORE else asked(root)


@functools.lru_cache(64)
def asked(root: str) -> _Fsspec:
  """Return fsspec's client, which knows sizes, patterns and buckets; see `client`."""
  return _opened(root, _Fsspec)


def _opened(root: str, kind: type):
  try:
    return kind(root)
  except Exception as error:  # each library raises its own types, all meaning that the address cannot be used
    if is_transient(error):
      raise TransientError(f"{root}: cannot be opened now ({one_line(error)[:300]})") from error
    package = _PACKAGES.get(root.partition("://")[0].removesuffix("s"))
    mend = f"pip install {package}" if package else "use an address that fsspec knows, or a mounted directory"
    raise UserError(f"{root}: cannot be opened ({one_line(error)[:200]}); {mend}") from error
