"""Read ranges of many files of a directory on a disk in parallel, by `preadv`.

On a disk, for a batch of ranges, the contents of the page cache are read at once (`RWF_NOWAIT`).
The rest is announced to the kernel (`POSIX_FADV_WILLNEED`), which reads all of it in parallel; only
then does the reader wait. Memory maps are about as fast on cached files and 14 to 140 times slower
on others (docs/reference/stores.md). A map also counts towards `vm.max_map_count`, and Python keeps
a descriptor open for each, so 10^5 shards cannot be mapped. All stores of the process share one
pool of open files, which holds up to a quarter of the process's limit (`ulimit -n`). For a file
outside the pool, opening and closing takes about 6 microseconds.
"""

import errno
import itertools
import os
import resource
import threading
from collections.abc import Sequence

from t5x_like.errors import DamageError, UserError, is_transient, retry
from t5x_like.files.local import LocalPath
from t5x_like.files.shard_files import Read, ShardFiles, Shards

_MAX_OPEN_FILES = 2**15
_NOWAIT = getattr(os, "RWF_NOWAIT", None)  # Linux only, like the announcement
_serials = itertools.count()  # numbers of the open stores


def max_open_files() -> int:
  """Return the maximum number of files that the pool keeps open."""
  soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
  return max(8, min(_MAX_OPEN_FILES, soft // 4))


class _Descriptor:
  """An open file, closed with its last reference.

  It binds `os.close` early, because module names may be gone when the interpreter ends.
  """

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
    # Reentrant: the garbage collector may call `forget` while this thread holds it.
    self._lock = threading.RLock()
    self._exceeded_limit = 0  # the limit when it was last exceeded
    self.get = self._open.get

  def open(self, key: tuple[int, str, int], path: str) -> _Descriptor:
    """Open a file and add it to the pool."""
    try:
      descriptor = _Descriptor(path)
    except OSError as error:
      if error.errno not in (errno.EMFILE, errno.ENFILE):
        raise
      self._shrink(0)  # the rest of the process has many files open; ours can be reopened
      descriptor = _Descriptor(path)
    self._open[key] = descriptor
    # The limit is queried only if the last one would be exceeded.
    if len(self._open) > self._exceeded_limit:
      limit = max_open_files()
      if len(self._open) > limit:
        self._exceeded_limit = limit
        self._shrink(limit * 7 // 8)
    return descriptor

  def close(self, key: tuple[int, str, int]) -> None:
    """Close a file, if it is open."""
    with self._lock:
      self._open.pop(key, None)

  def forget(self, serial: int) -> None:
    """Close the files of a store."""
    with self._lock:
      for key in [key for key in list(self._open) if key[0] == serial]:
        self._open.pop(key, None)

  def _shrink(self, count: int) -> None:
    """Close all files but the `count` that were opened last."""
    with self._lock:
      excess = max(0, len(self._open) - count)
      for key in list(self._open)[:excess]:
        self._open.pop(key, None)


_pool = _Pool()


class LocalShardFiles(ShardFiles):
  """The files of a directory on a disk."""

  def __init__(self, root: LocalPath, remedy: str):
    super().__init__(root, remedy)
    self._serial = next(_serials)
    # The size and modification time of each file when it was opened, by array and shard.
    self._signatures: dict[tuple[str, int], tuple[int, int]] = {}

  def __del__(self, pool=_pool):
    pool.forget(self._serial)

  def fill(self, shards: Shards, array: str, reads: Sequence[Read]) -> None:
    try:
      self._fill(shards, array, reads)
    except OSError as error:
      if not is_transient(error):
        raise self._refusal(error) from error
      try:
        retry(lambda: self._fill(shards, array, reads), self._root)
      except OSError as second_error:
        raise self._refusal(second_error) from second_error

  def _fill(self, shards: Shards, array: str, reads: Sequence[Read]) -> None:
    """Read the cached bytes of all ranges, announce the others to the kernel, then read them."""
    uncached_reads = []
    get = _pool.get
    serial = self._serial
    for shard, offset, buffer in reads:
      try:
        descriptor = get((serial, array, shard)) or self._open(shards, array, shard)
        num_read = _read_cached(descriptor.fd, (buffer,), offset) if _NOWAIT else 0
        if num_read != len(buffer):
          uncached_reads.append((shard, offset + num_read, buffer[num_read:]))
          _announce(descriptor.fd, offset + num_read, len(buffer) - num_read)
      except OSError as error:
        raise self._drop_file(shards, array, shard, error)  # noqa: B904 -- the same error
    for shard, offset, buffer in uncached_reads:
      try:
        descriptor = get((serial, array, shard)) or self._open(shards, array, shard)
        while len(buffer):
          num_read = _read(descriptor.fd, buffer, offset)
          if not num_read:
            raise DamageError(
              f"{self.name(shards.file(array, shard))}: found {os.fstat(descriptor.fd).st_size} "
              f"bytes, expected over {offset}: the file is truncated; copy it again or "
              f"{self._remedy}"
            )
          offset += num_read
          buffer = buffer[num_read:]
      except OSError as error:
        raise self._drop_file(shards, array, shard, error)  # noqa: B904 -- the same error

  def _open(self, shards: Shards, array: str, shard: int) -> _Descriptor:
    """Open a file in the pool, and note its signature the first time."""
    descriptor = _pool.open((self._serial, array, shard), self.name(shards.file(array, shard)))
    self._signatures.setdefault((array, shard), _signature(os.fstat(descriptor.fd)))
    return descriptor

  def changed(self, shards: Shards) -> list[tuple[str, int]]:
    changed = []
    for (array, shard), signature in list(self._signatures.items()):
      try:
        current = _signature(os.stat(self.name(shards.file(array, shard))))
      except OSError:  # the next reader that needs the file reports it
        continue
      if current != signature:
        self._signatures[array, shard] = current
        _pool.close((self._serial, array, shard))
        changed.append((array, shard))
    return changed

  def _drop_file(self, shards: Shards, array: str, shard: int, error: OSError) -> OSError:
    """Close an unreadable file, as its descriptor may be stale; return the error with its path."""
    _pool.close((self._serial, array, shard))
    error.filename = self.name(shards.file(array, shard))
    return error

  def _refusal(self, error: OSError) -> UserError:
    """Return the error for the user, with the remedy."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
      return UserError(
        f"{error.filename}: cannot be opened ({error.strerror}): raise the limit of open files "
        "(ulimit -n)"
      )
    return UserError(
      f"{error.filename}: cannot be read ({error.strerror}): copy it again or {self._remedy}"
    )


def _signature(status: os.stat_result) -> tuple[int, int]:
  """Return the size and the modification time of a file."""
  return status.st_size, status.st_mtime_ns


def _read_cached(fd: int, buffers: tuple[memoryview], offset: int) -> int:
  """Read cached bytes without waiting and return their number; 0 where that is not supported."""
  try:
    return os.preadv(fd, buffers, offset, _NOWAIT)
  except BlockingIOError:
    return 0
  except OSError as error:
    if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
      raise
    return 0


def _announce(fd: int, offset: int, size: int) -> None:
  """Tell the kernel that a range will be read, so that it begins to read it."""
  if hasattr(os, "posix_fadvise"):
    os.posix_fadvise(fd, offset, size, os.POSIX_FADV_WILLNEED)


def _read(fd: int, buffer: memoryview, offset: int) -> int:
  """Read bytes at an offset and return their number, which may be less than the buffer's size."""
  if hasattr(os, "preadv"):
    return os.preadv(fd, (buffer,), offset)
  data = os.pread(fd, len(buffer), offset)
  buffer[: len(data)] = data
  return len(data)
