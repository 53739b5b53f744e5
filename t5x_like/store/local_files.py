"""A token store's files in a local directory, read with `preadv` through one pool of open files.

For a batch of windows, the contents of the page cache are read at once (`RWF_NOWAIT`). The rest is announced to the
kernel (`POSIX_FADV_WILLNEED`), which reads all of it in parallel; only then does the reader wait. Memory maps are about
as fast on cached files and 14 to 140 times slower on others (docs/reference/token-store.md). A map also counts towards
`vm.max_map_count`, and Python keeps a descriptor open for each, so 10^5 shards cannot be mapped.

All stores of the process share the pool, which holds up to a quarter of the process's limit of open files
(`ulimit -n`). For a shard outside the pool, opening and closing its file takes about 6 microseconds.
"""

import contextlib
import errno
import hashlib
import itertools
import os
import pathlib
import resource
import stat
import threading
from collections.abc import Iterator, Sequence

from t5x_like.errors import DamageError, UserError, one_line
from t5x_like.store.manifest import REMEDY
from t5x_like.store.shards import Shards

_MOST_OPEN = 2**15
_NOWAIT = getattr(os, "RWF_NOWAIT", None)  # Linux only, like the announcement
_serials = itertools.count()


def most_open() -> int:
  """Return the maximum number of files that the pool holds open."""
  soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
  return max(8, min(_MOST_OPEN, soft // 4))


class _Descriptor:
  """An open file, closed with its last reference."""

  __slots__ = ("fd",)

  def __init__(self, path: str):
    self.fd = -1
    self.fd = os.open(path, os.O_RDONLY)

  def __del__(self, close=os.close):
    if self.fd >= 0:
      close(self.fd)


class _Pool:
  """The open files of all stores, keyed by (store, array, shard); first opened, first closed."""

  def __init__(self):
    self._open: dict[tuple[int, str, int], _Descriptor] = {}
    self._lock = threading.Lock()
    self._most = 0  # the limit when it was last exceeded
    self.get = self._open.get

  def open(self, key: tuple[int, str, int], path: str) -> _Descriptor:
    try:
      descriptor = _Descriptor(path)
    except OSError as error:
      if error.errno not in (errno.EMFILE, errno.ENFILE):
        raise
      self._keep(0)  # the rest of the process has many files open; ours can be reopened
      descriptor = _Descriptor(path)
    self._open[key] = descriptor
    if len(self._open) > self._most and len(self._open) > (most := most_open()):
      self._most = most
      self._keep(most * 7 // 8)
    return descriptor

  def forget(self, serial: int) -> None:
    """Close the files of a store."""
    with self._lock:
      for key in [key for key in list(self._open) if key[0] == serial]:
        self._open.pop(key, None)

  def _keep(self, count: int) -> None:
    with self._lock:
      excess = max(0, len(self._open) - count)
      for key in list(self._open)[:excess]:
        self._open.pop(key, None)


_pool = _Pool()


class LocalFiles:
  """The files of a store in a local directory."""

  def __init__(self, root: str):
    self._root, self._serial = root.rstrip("/"), next(_serials)

  def __del__(self, pool=_pool):
    pool.forget(self._serial)

  def name(self, file: str) -> str:
    return f"{self._root}/{file}"

  def read(self, file: str) -> bytes | None:
    try:
      if not stat.S_ISREG(os.stat(self.name(file)).st_mode):
        raise OSError("not a regular file")  # reading a pipe could wait forever
      return pathlib.Path(self._root, file).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
      return None
    except OSError as error:
      raise UserError(f"{self.name(file)}: cannot be read ({one_line(error)})") from error

  def listing(self, directories: Sequence[str]) -> dict[str, int | None]:
    found, waiting = {}, list(directories)
    while waiting:
      directory = waiting.pop()
      try:
        with os.scandir(self.name(directory)) as entries:
          for entry in entries:
            if entry.is_dir():
              waiting.append(f"{directory}/{entry.name}")
            else:
              with contextlib.suppress(FileNotFoundError):  # a dangling link
                found[f"{directory}/{entry.name}"] = entry.stat().st_size
      except (FileNotFoundError, NotADirectoryError):
        continue
      except OSError as error:
        raise UserError(f"{self.name(directory)}: cannot be listed ({one_line(error)})") from error
    return found

  def sha256(self, file: str, size: int) -> str:
    try:
      with open(self.name(file), "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
      raise UserError(f"{self.name(file)}: cannot be read ({one_line(error)}): {REMEDY}") from error

  def fill(self, shards: Shards, array: str, reads: Sequence[tuple[int, int, memoryview]]) -> None:
    late, get, serial = [], _pool.get, self._serial
    for shard, offset, into in reads:
      try:
        descriptor = get((serial, array, shard)) or self._open(shards, array, shard)
        done = _cached(descriptor.fd, (into,), offset) if _NOWAIT else 0
        if done != len(into):
          late.append((shard, offset + done, into[done:]))
          _announce(descriptor.fd, offset + done, len(into) - done)
      except OSError as error:
        raise self._refusal(shards.file(array, shard), error) from error
    for shard, offset, into in late:
      try:
        descriptor = _pool.get((self._serial, array, shard)) or self._open(shards, array, shard)
        while len(into):
          done = _read(descriptor.fd, into, offset)
          if not done:
            raise DamageError(
              f"{self.name(shards.file(array, shard))}: found {os.fstat(descriptor.fd).st_size} bytes, expected over "
              f"{offset}: the file is truncated; copy it again or {REMEDY}"
            )
          offset, into = offset + done, into[done:]
      except OSError as error:
        raise self._refusal(shards.file(array, shard), error) from error

  @contextlib.contextmanager
  def local(self, directory: str) -> Iterator[pathlib.Path]:
    yield pathlib.Path(self._root, directory)

  def _open(self, shards: Shards, array: str, shard: int) -> _Descriptor:
    return _pool.open((self._serial, array, shard), self.name(shards.file(array, shard)))

  def _refusal(self, file: str, error: OSError) -> UserError:
    if error.errno in (errno.EMFILE, errno.ENFILE):
      return UserError(
        f"{self.name(file)}: cannot be opened ({error.strerror}): raise the limit of open files (ulimit -n)"
      )
    return UserError(f"{self.name(file)}: cannot be read ({error.strerror}): copy it again or {REMEDY}")


def _cached(fd: int, into: tuple[memoryview], offset: int) -> int:
  """Read cached bytes without waiting and return their number; 0 if the file system does not support this."""
  try:
    return os.preadv(fd, into, offset, _NOWAIT)
  except BlockingIOError:
    return 0
  except OSError as error:
    if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
      raise
    return 0


def _announce(fd: int, offset: int, size: int) -> None:
  if hasattr(os, "posix_fadvise"):
    os.posix_fadvise(fd, offset, size, os.POSIX_FADV_WILLNEED)


def _read(fd: int, into: memoryview, offset: int) -> int:
  if hasattr(os, "preadv"):
    return os.preadv(fd, (into,), offset)
  data = os.pread(fd, len(into), offset)
  into[: len(data)] = data
  return len(data)
