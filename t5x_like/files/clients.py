"""The clients of object stores, one for each scheme.

TensorStore reads `gs://`, `s3://` and `http(s)://`; fsspec reads every other scheme. TensorStore
reports no sizes of objects, supports no patterns, and returns an empty listing where Google refuses
one. Sizes, patterns and buckets are therefore queried through fsspec for every scheme
(`open_fsspec_client`).

`s3://` respects `AWS_ENDPOINT_URL` and `AWS_REGION`, so that S3 servers other than Amazon's can be
used.
"""

import concurrent.futures
import contextlib
import functools
import logging
import os
import posixpath
import urllib.parse
from typing import NamedTuple

import fsspec

from t5x_like.errors import TransientError, UserError, is_transient, one_line
from t5x_like.files import store_errors
from t5x_like.files.local import Versioned
from t5x_like.files.store_errors import ErrorKind, error_chain

ByteRange = slice | None  # a range of a file's bytes; None is the whole file

TENSORSTORE = ("gs", "s3", "http", "https")  # the schemes that TensorStore reads
_PACKAGES = {  # the package that fsspec needs for a scheme
  "gs": "gcsfs",
  "s3": "s3fs",
  "az": "adlfs",
  "abfs": "adlfs",
  "abfss": "adlfs",
  "hf": "huggingface_hub",
  "http": "aiohttp",
  "https": "aiohttp",
}
_MAX_REQUESTS = 32  # requests of fsspec in flight at once
_ABSENT = b"\x02"  # TensorStore's generation of an absent file
_DRIVERS = ("gcs", "s3", "http")


def _tensorstore_context() -> dict[str, dict]:
  """Return the retries and concurrency of each driver, the arguments of TensorStore's `Context`."""
  context: dict[str, dict] = {}
  for driver in _DRIVERS:
    context[f"{driver}_request_retries"] = {
      "max_retries": 8,
      "initial_delay": "100ms",
      "max_delay": "8s",
    }
    context[f"{driver}_request_concurrency"] = {"limit": 128}
  return context


class ReadReply(NamedTuple):
  """The answer to a read; `state` is "missing" if there is no such file."""

  state: str
  value: bytes = b""


class _TensorStore:
  """The files below a URL, by key, read and written by TensorStore.

  - `read` returns the future of a `ReadReply` with all bytes or a range.
  - `write` writes a whole file, or deletes it if `data` is None.
  - `create` writes a file that must not exist.
  - `replace` writes or deletes a file that must still be of the version that `read_version`
    returned.
  - `find` returns the keys that begin with a prefix, with the sizes of the files (None if unknown).
  """

  def __init__(self, url: str):
    import tensorstore as ts

    self._ts = ts
    spec = url
    parts = urllib.parse.urlsplit(url)
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if parts.scheme == "s3" and endpoint:
      region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
      spec = {"driver": "s3", "bucket": parts.netloc, "path": parts.path.lstrip("/")}
      spec |= {"endpoint": endpoint, "aws_region": region}
    self._files = ts.KvStore.open(spec, context=ts.Context(_tensorstore_context())).result()

  def read(self, key: str, part: ByteRange = None):
    return self._files.read(key, byte_range=part)

  def write(self, key: str, data: bytes | None, timeout: float) -> None:
    self._files.write(key, data).result(timeout=timeout)

  def create(self, key: str, data: bytes, timeout: float) -> bool:
    return self.replace(key, data, _ABSENT, timeout)

  def read_version(self, key: str, timeout: float) -> Versioned | None:
    reply = self._files.read(key).result(timeout=timeout)
    if reply.state == "missing":
      return None
    return Versioned(bytes(reply.value), reply.stamp.generation)

  def replace(self, key: str, data: bytes | None, version: bytes, timeout: float) -> bool:
    return bool(self._files.write(key, data, if_equal=version).result(timeout=timeout).generation)

  def find(self, prefix: str, timeout: float) -> dict[str, int | None]:
    end = ""
    if prefix:  # the first key after all that begin with the prefix
      end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    keys = self._files.list(self._ts.KvStore.KeyRange(prefix, end)).result(timeout=timeout)
    return {key.decode(): None for key in keys}


class _Fsspec:
  """The same methods as `_TensorStore`, through fsspec, whose clients set their own timeouts.

  Attributes:
    files: fsspec's file system.
  """

  def __init__(self, url: str):
    self.url = url
    self.files, root = fsspec.core.url_to_fs(url, skip_instance_cache=True)
    self._root = root.rstrip("/")
    # gcsfs logs a traceback of every error that it also raises
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)

  def path(self, key: str) -> str:
    """Return the path of a key for fsspec's methods."""
    return f"{self._root}/{key}".rstrip("/") if self._root else key

  def read(self, key: str, part: ByteRange = None):
    def get() -> ReadReply:
      start = part.start if part else None
      end = part.stop if part else None
      try:
        return ReadReply("value", self.files.cat_file(self.path(key), start=start, end=end))
      except Exception as error:
        if store_errors.error_kind(error) is not ErrorKind.ABSENT:
          raise
        return ReadReply("missing")

    return thread_pool().submit(get)

  def write(self, key: str, data: bytes | None, timeout: float) -> None:
    if data is None:
      with contextlib.suppress(FileNotFoundError):
        self.files.rm_file(self.path(key))
    else:
      self._put(key, data)

  def create(self, key: str, data: bytes, timeout: float) -> bool:
    self._put(key, data, mode="create")
    return True

  def read_version(self, key: str, timeout: float) -> Versioned | None:
    reply = self.read(key).result(timeout=timeout)
    if reply.state == "missing":
      return None
    return Versioned(reply.value, reply.value)  # fsspec has no versions: the contents are compared

  def replace(self, key: str, data: bytes | None, version: bytes, timeout: float) -> bool:
    """Compare before writing, as fsspec has no conditional writes."""
    current = self.read_version(key, timeout)
    if current is None or current.version != version:
      return False
    self.write(key, data, timeout)
    return True

  def find(self, prefix: str, timeout: float) -> dict[str, int | None]:
    self.files.invalidate_cache()
    folder = prefix.rpartition("/")[0]
    try:
      details = self.files.find(self.path(folder), detail=True)
    except FileNotFoundError:
      return {}
    sizes = {self._key(path): detail.get("size") for path, detail in details.items()}
    return {key: size for key, size in sizes.items() if key.startswith(prefix)}

  def find_matches(self, pattern: str) -> dict[str, tuple[str, int | None]]:
    """Return type (`file` or `directory`) and size of each match of a glob pattern, by key."""
    self.files.invalidate_cache()
    details = self.files.glob(self.path(pattern), detail=True)
    matches = {}
    for path, detail in sorted(details.items()):
      matches[self._key(path)] = (detail["type"], detail.get("size"))
    return matches

  def query_bucket(self) -> None:
    """Query the bucket of a Google or Amazon URL; raise the client's error if that fails."""
    scheme, _, path = self.url.partition("://")
    bucket = path.partition("/")[0]
    self.files.invalidate_cache()
    if scheme == "gs":
      self.files.ls(bucket, detail=False, max_results=1)
    elif scheme == "s3":
      self.files.call_s3("head_bucket", Bucket=bucket)

  def _put(self, key: str, data: bytes, **options) -> None:
    self.files.makedirs(posixpath.dirname(self.path(key)), exist_ok=True)
    self.files.pipe_file(self.path(key), data, **options)

  def _key(self, path: str) -> str:
    return path[len(self._root) :].lstrip("/")


Client = _TensorStore | _Fsspec


@functools.cache
def thread_pool() -> concurrent.futures.ThreadPoolExecutor:
  """Return the threads that wait for fsspec's requests."""
  return concurrent.futures.ThreadPoolExecutor(_MAX_REQUESTS)


@functools.lru_cache(64)
def open_client(root: str) -> Client:
  """Return the client of the files below `scheme://bucket/`.

  Raises:
    UserError: the URL cannot be used, or needs a package that is not installed.
    TransientError: the URL cannot be used now.
  """
  if root.partition("://")[0] in TENSORSTORE:
    return _open(root, _TensorStore)
  return open_fsspec_client(root)


@functools.lru_cache(64)
def open_fsspec_client(root: str) -> _Fsspec:
  """Return fsspec's client, which also finds sizes, patterns and buckets; see `open_client`."""
  return _open(root, _Fsspec)


def _open(root: str, client_class: type):
  """Make a client; translate the errors of its library, see `open_client`."""
  try:
    return client_class(root)
  # each library raises its own types, all meaning that the URL cannot be used
  except Exception as error:
    if is_transient(error):
      raise TransientError(f"{root}: cannot be opened now ({one_line(error)[:300]})") from error
    remedy = "correct the address, or use a mounted directory"
    package = _PACKAGES.get(root.partition("://")[0])
    if package and any(isinstance(cause, ImportError) for cause in error_chain(error)):
      remedy = f"pip install {package}"
    raise UserError(f"{root}: cannot be opened ({one_line(error)[:200]}); {remedy}") from error
