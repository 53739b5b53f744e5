"""Files at a URL, in the bucket of an object store or on any file system of fsspec.

An object store guarantees only that an object appears whole or not at all; listings may lag.
Therefore this module never renames an object, and a set of objects is committed by writing one last
object. A directory exists while it holds files. Refused or unanswered requests (429, 5xx, broken
connections) are repeated with growing delays; other failures become the errors of
docs/reference/exit-codes.md.
"""

import contextlib
import errno
import io
import math
import os
import posixpath
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

from t5x_like import trust
from t5x_like.errors import DamageError, exit_code, retry, translate_error
from t5x_like.files import clients, store_errors
from t5x_like.files.clients import ByteRange
from t5x_like.files.local import Versioned
from t5x_like.files.store_errors import ErrorKind

_ALIASES = {"gcs": "gs", "s3a": "s3"}
_ATTEMPT_SECONDS = 30.0  # time limit of a request, besides the time to transfer its bytes
_MIN_BYTES_PER_SECOND = 2**20
_ASSUMED_SIZE = 2**25  # bytes; stands in for an unknown size when a time limit is computed
_RECHECK_SECONDS = 1.0  # a bucket that exists is not checked again within this time
_STREAM_READ_BYTES = 2**23  # bytes of a request when a whole file is read

_last_checks: dict[str, float] = {}  # when each bucket was last checked and existed


def reset() -> None:
  """Forget all clients and their listings, as if the program had just started."""
  clients.open_client.cache_clear()
  clients.open_fsspec_client.cache_clear()
  _last_checks.clear()


class RemotePath:
  """A file or directory at a URL, with the methods of `local.LocalPath`.

  A method that needs an absent file raises FileNotFoundError.

  Args:
    url: `scheme://bucket/key`, or a chained URL of fsspec, such as `zip://a/b::gs://bucket/c.zip`,
      the file `a/b` in an archive. Its root is everything but the first path.

  Raises:
    UserError, DamageError, TransientError: of every method, see docs/reference/exit-codes.md;
      temporary failures only after `T5X_LIKE_RETRY_SECONDS`, two minutes by default.
  """

  def __init__(self, url: str):
    first, chain, chained = str(url).partition("::")
    if "://" not in first:  # as in `simplecache::gs://bucket/file`
      first = str(url)
      chain = ""
      chained = ""
    scheme, _, path = first.rstrip("/").partition("://")
    self._scheme = _ALIASES.get(scheme, scheme)
    self._chain = chain + chained
    if chain:
      self._key = path
      self._root = f"{self._scheme}://{self._chain}"
    else:
      bucket, _, self._key = path.partition("/")
      self._root = f"{self._scheme}://{bucket}/"
    self._url = f"{first.rstrip('/')}{self._chain}"
    trust.check_address(self._url)

  def __str__(self) -> str:
    return self._url

  __fspath__ = __str__

  def __lt__(self, other: "RemotePath") -> bool:
    return self._url < other._url

  def __truediv__(self, name: str) -> "RemotePath":
    return RemotePath(f"{self._url.removesuffix(self._chain)}/{name}{self._chain}")

  @property
  def name(self) -> str:
    return posixpath.basename(self._key)

  @property
  def parent(self) -> "RemotePath":
    if not self._key:
      return self
    url = self._url.removesuffix(self._chain)
    return RemotePath(url.rpartition("/")[0] + self._chain)

  def read(self, part: ByteRange = None) -> bytes | None:
    """Return the file's bytes, or a range; None if there is no file.

    Raises:
      DamageError: the range is outside the file.
    """
    return _read(self._root, [(self._key, part)], self._url_of_key)[0]

  def read_many(
    self,
    parts: Sequence[tuple[str, ByteRange]],
    seconds: float | None = None,
    versions: dict[str, Any] | None = None,
  ) -> list[bytes | None]:
    """Request files of this directory, or ranges of them, all at once; see `read`.

    Args:
      seconds: how long to wait for each, over all attempts.
      versions: filled with the version of each file, by name, where the store gives one; see
        `read_version`.
    """
    prefix = f"{self._key}/".lstrip("/")
    by_key: dict[str, Any] = {}
    data = _read(
      self._root, [(prefix + name, part) for name, part in parts], self._url_of_key, seconds, by_key
    )
    if versions is not None:
      versions.update({key.removeprefix(prefix): version for key, version in by_key.items()})
    return data

  def read_bytes(self) -> bytes:
    data = self.read()
    if data is None:
      raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
    return data

  def read_text(self, encoding: str = "utf-8") -> str:
    return self.read_bytes().decode(encoding)

  def open(self, mode: str) -> BinaryIO:
    """Open the file to read its bytes; `mode` is `rb`."""
    return io.BufferedReader(_Stream(self), _STREAM_READ_BYTES)

  def write_bytes(self, data: bytes) -> None:
    self._request(
      lambda files, timeout: files.write(self._key, data, timeout), "written", len(data)
    )

  def write_text(self, text: str) -> None:
    self.write_bytes(text.encode())

  def create(self, data: bytes) -> bool:
    """Write the file unless it exists; return whether it was written.

    `data` must be unique to the call.
    """

    def call(files: clients.Client, timeout: float) -> bool:
      try:
        return files.create(self._key, data, timeout)
      except Exception as error:
        if store_errors.error_kind(error) is not ErrorKind.EXISTS:
          raise
        return False

    # If the answer to a successful write was lost, the second attempt finds the data of the first.
    return self._request(call, "written") or self.read() == data

  def read_version(self) -> Versioned | None:
    """Return the file's content with its version; None if there is no file."""
    return self._request(
      lambda files, timeout: files.read_version(self._key, timeout), "read", _ASSUMED_SIZE
    )

  def replace_version(self, data: bytes | None, version: Any) -> bool:
    """Write the file, or delete it if `data` is None, unless its version has changed.

    Return whether the file was written or deleted. Google's store and S3 compare and write
    atomically; other stores do not. `data` must be unique to the call.
    """

    def call(files: clients.Client, timeout: float) -> bool:
      return files.replace(self._key, data, version, timeout)

    # As in `create`, the answer to a successful write may have been lost.
    return self._request(call, "written") or self.read() == data

  def renew(self, data: bytes, version: Any) -> bool:
    """Change the version of the file by writing `data`; False if it has another version."""
    return self.replace_version(data, version)

  def sizes(self, prefix: str = "") -> dict[str, int | None]:
    """Return the size of each file below this directory whose name begins with `prefix`.

    A size is None if unknown.
    """
    sizes = self._find(f"{self._key}/{prefix}", "listed")
    if not sizes:
      _check_bucket(self._root, self._url, "listed")
    return {key[len(self._key) :].lstrip("/"): size for key, size in sizes.items()}

  def names(self) -> list[str]:
    """Return the sorted names of the directory's entries; [] if there is no such directory."""
    return sorted({name.partition("/")[0] for name in self.sizes()})

  def iterdir(self) -> Iterator["RemotePath"]:
    return iter([self / name for name in self.names()])

  def matches(self) -> dict[str, tuple[str, int | None]]:
    """Return the sorted URLs that match this one, a glob pattern, with type and size.

    The type is `file` or `directory`, the size in bytes, None if unknown.
    """
    with _translate_errors(self._url, "listed"):
      matches = retry(
        lambda: clients.open_fsspec_client(self._root).find_matches(self._key), self._url
      )
    return {str(RemotePath(self._url_of_key(key))): about for key, about in matches.items()}

  def is_dir(self) -> bool:
    # Web servers do not list directories.
    return self._scheme not in ("http", "https") and bool(self.sizes())

  def is_file(self) -> bool:
    try:
      return self.read(slice(0, 1)) is not None
    except DamageError:  # the file is empty, so the range is not inside it
      return True

  def exists(self) -> bool:
    return self.is_file() or self.is_dir()

  def about(self) -> dict[str, Any]:
    """Return `type` (`file` or `directory`) and `size` (None if unknown), as last listed."""
    client = clients.open_fsspec_client(self._root)
    try:
      return retry(lambda: client.files.info(client.path(self._key)), self._url)
    except Exception as error:
      if exit_code(error) is None and store_errors.error_kind(error) is ErrorKind.ABSENT:
        _check_bucket(self._root, self._url, "read")
      raise translate_error(error, self._url, "read") from error

  def size(self) -> int:
    """Return the size of the file in bytes."""
    size = self.about()["size"]
    return len(self.read_bytes()) if size is None else size

  def modified_time(self) -> int | None:
    """Return None, because stores differ in their definitions of the time."""

  def mkdir(self, **_: bool) -> None:
    """Do nothing: a directory exists while it holds files."""

  def unlink(self, missing_ok: bool = False) -> None:
    self._delete(self._key)

  def rmtree(self, missing_ok: bool = False) -> None:
    keys = self._find(f"{self._key}/", "deleted")
    deletions = clients.thread_pool().map(self._delete, keys)
    for _ in deletions:  # waits for each, and raises its error
      pass

  def _url_of_key(self, key: str) -> str:
    """Return the URL of a key of the same bucket."""
    return f"{self._root.removesuffix(self._chain)}{key}{self._chain}"

  def _find(self, prefix: str, operation: str) -> dict[str, int | None]:
    return self._request(lambda files, timeout: files.find(prefix.lstrip("/"), timeout), operation)

  def _delete(self, key: str) -> None:
    self._request(lambda files, timeout: files.write(key, None, timeout), "deleted")

  def _request(
    self, request: Callable[[clients.Client, float], Any], operation: str, size: int = 0
  ) -> Any:
    files = clients.open_client(self._root)
    timeout = _ATTEMPT_SECONDS + size / _MIN_BYTES_PER_SECOND
    with _translate_errors(self._url, operation):
      return retry(lambda: request(files, timeout), self._url)


def _read(
  root: str,
  parts: Sequence[tuple[str, ByteRange]],
  url_of_key: Callable[[str], str],
  seconds: float | None = None,
  versions: dict[str, Any] | None = None,
) -> list[bytes | None]:
  """Request ranges of files of a bucket at once; None for an absent file.

  Args:
    root: the URL of the bucket.
    parts: the key and the range of each read.
    url_of_key: `(key) -> its URL`, for messages.
    seconds: how long to wait for each, over all attempts.
    versions: the dictionary to fill with each file's version, by key, where the store gives one.
  """
  files = clients.open_client(root)
  requests = [files.read(key, part) for key, part in parts]
  contents = []
  for (key, part), request in zip(parts, requests, strict=True):
    url = url_of_key(key)
    reader = _RangeReader(files, key, part, request, url, seconds)
    with _translate_errors(url, "read"):
      reply = retry(reader.read, url, seconds=seconds)
    if reply.state == "missing":
      _check_bucket(root, url, "read")
      contents.append(None)
      continue
    # Only TensorStore's replies have a stamp. Stamps of web servers are not used: the copies of a
    # file on several servers may have different versions.
    stamp = None if root.startswith("http") else getattr(reply, "stamp", None)
    if versions is not None and stamp is not None:
      versions[key] = stamp.generation
    contents.append(bytes(reply.value))
  return contents


class _RangeReader:
  """Waits for a requested range of a file, and requests it again at every further attempt.

  Args:
    request: the future of the first reply.
  """

  def __init__(self, files, key: str, part: ByteRange, request, url: str, seconds):
    self._files = files
    self._key = key
    self._part = part
    self._first_request = request
    self._url = url
    self._size = part.stop - part.start if part else _ASSUMED_SIZE
    timeout = _ATTEMPT_SECONDS + self._size / _MIN_BYTES_PER_SECOND
    self._timeout = min(timeout, seconds or math.inf)

  def read(self):
    """Return the store's reply; raise DamageError if it has another size than the range."""
    request = self._first_request or self._files.read(self._key, self._part)
    self._first_request = None
    try:
      reply = request.result(timeout=self._timeout)
    except TimeoutError:
      raise TimeoutError("no answer; check the network and that the store is still there") from None
    if reply.state != "missing" and self._part and len(reply.value) != self._size:
      shortage = EOFError(f"{len(reply.value)} of {self._size} bytes")
      raise DamageError(store_errors.error_message(ErrorKind.DAMAGED, self._url, "read", shortage))
    return reply


@contextlib.contextmanager
def _translate_errors(url: str, operation: str) -> Iterator[None]:
  """Translate a client's errors.

  Clients report an absent file without an error, so an error of that kind means an absent bucket.
  """
  try:
    yield
  except Exception as error:
    absent = exit_code(error) is None and store_errors.error_kind(error) is ErrorKind.ABSENT
    raise translate_error(error, url, operation, ErrorKind.NO_BUCKET if absent else None) from error


def _check_bucket(root: str, url: str, operation: str) -> None:
  """Raise an error if a file is missing at a URL because its bucket does not exist.

  Args:
    root: the URL of the bucket.
    url: the URL of the missing file, for messages.
    operation: the failed operation, for messages: `read`, or `listed`, which also raises if listing
      the bucket is not permitted.
  """
  seconds_since_check = time.monotonic() - _last_checks.get(root, -_RECHECK_SECONDS)
  if operation == "read" and seconds_since_check < _RECHECK_SECONDS:
    return
  scheme = root.partition("://")[0]
  try:
    if scheme == "s3" and scheme in clients.TENSORSTORE:
      retry(lambda: clients.open_client(root).find("no/such/file/", _ATTEMPT_SECONDS), url)
    elif scheme in ("gs", "s3"):
      retry(lambda: clients.open_fsspec_client(root).query_bucket(), url)
  except Exception as error:
    if isinstance(error.__cause__, ImportError):  # the library that could check is not installed
      return
    is_gone = store_errors.error_kind(error) in (ErrorKind.ABSENT, ErrorKind.NO_BUCKET)
    if is_gone or operation == "listed" or exit_code(error) is not None:
      raise translate_error(
        error, url, operation, ErrorKind.NO_BUCKET if is_gone else None
      ) from error
  _last_checks[root] = time.monotonic()


class _Stream(io.RawIOBase):
  """The bytes of a file at a URL, requested as they are read."""

  def __init__(self, file: RemotePath):
    self._file = file
    self._size = file.size()
    self._position = 0

  def readable(self) -> bool:
    return True

  def seekable(self) -> bool:
    return True

  def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
    origins = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
    self._position = origins[whence] + offset
    return self._position

  def tell(self) -> int:
    return self._position

  def readinto(self, buffer: memoryview) -> int:
    data = self._next(len(buffer))
    buffer[: len(data)] = data
    return len(data)

  def readall(self) -> bytes:
    return b"".join(iter(lambda: self._next(_STREAM_READ_BYTES), b""))

  def _next(self, max_size: int) -> bytes:
    size = max(0, min(max_size, self._size - self._position))
    data = self._file.read(slice(self._position, self._position + size)) if size else b""
    if data is None:
      raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._file))
    self._position += size
    return data
