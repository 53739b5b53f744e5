"""Ranges of many files of one directory, read in parallel: on a disk by `preadv`, at an address by its client.

On a disk, for a batch of ranges, the contents of the page cache are read at once (`RWF_NOWAIT`). The rest is announced
to the kernel (`POSIX_FADV_WILLNEED`), which reads all of it in parallel; only then does the reader wait. Memory maps
are about as fast on cached files and 14 to 140 times slower on others (docs/reference/stores.md). A map also
counts towards `vm.max_map_count`, and Python keeps a descriptor open for each, so 10^5 shards cannot be mapped. All
stores of the process share one pool of open files, which holds up to a quarter of the process's limit (`ulimit -n`).
For a file outside the pool, opening and closing takes about 6 microseconds.

At an address, a store that fits the process's cache is read in blocks that stay cached: once warm, it is effectively in
memory. Ranges of a larger store are not needed again until the next epoch, so they are read one by one and not cached.
An unanswered read is requested again; after five minutes the run ends with a one-line error.
"""

import abc
import errno
import hashlib
import itertools
import os
import resource
import threading
from collections.abc import Sequence
from typing import Protocol

from t5x_like.errors import DamageError, UserError, one_line
from t5x_like.files.clients import Part
from t5x_like.files.places import Local, Remote, place

CACHE_BYTES = 2**30  # shared by all stores of a process
PATIENCE_SECONDS = 300.0  # for a read at an address, over all attempts
_BLOCK = 2**18
_READ_BYTES = 2**24  # per request when a whole file is read
_MOST_OPEN = 2**15
_NOWAIT = getattr(os, "RWF_NOWAIT", None)  # Linux only, like the announcement
_serials = itertools.count()

Read = tuple[int, int, memoryview]  # shard, first byte, the bytes to fill


class Shards(Protocol):
  """A table of the files that hold the shards of arrays."""

  num_bytes: int

  def file(self, array: str, shard: int) -> str:
    """Return the path of a file, relative to its directory."""

  def size(self, array: str, shard: int) -> int:
    """Return the size of a file in bytes."""


def at(path: str, remedy: str = "prepare it again") -> "Files":
  """Return the files of a directory at a path or address; raise UserError if the address cannot be opened.

  Args:
    remedy: how to get a damaged file anew, for messages.
  """
  root = place(path)
  return LocalFiles(root, remedy) if isinstance(root, Local) else RemoteFiles(root, remedy)


class Files(abc.ABC):
  """The files of one directory, named by their path relative to it."""

  @abc.abstractmethod
  def fill(self, shards: Shards, array: str, reads: Sequence[Read]) -> None:
    """Read ranges of the shards' files of one array; thread-safe.

    Raises:
      UserError: a file is missing or not readable.
      DamageError: a file is too short.
      TransientError: a file cannot be read now.
    """

  def __init__(self, root: Local | Remote, remedy: str):
    self._root, self._remedy = root, remedy

  def name(self, file: str) -> str:
    """Return the full path, for messages."""
    return f"{self._root}/{file}"

  def read(self, file: str) -> bytes | None:
    """Return the contents, or None if the file does not exist."""
    try:
      return (self._root / file).read()
    except OSError as error:
      raise UserError(f"{self.name(file)}: cannot be read ({one_line(error)})") from error

  def listing(self, directories: Sequence[str]) -> dict[str, int | None] | None:
    """List the files in directories with their sizes (None if unknown); return None if listing is not possible."""
    try:
      return {f"{one}/{name}": size for one in directories for name, size in (self._root / one).sizes().items()}
    except OSError as error:
      raise UserError(f"{self._root}: cannot be listed ({one_line(error)})") from error
    except UserError as error:
      if "does not support listing" in str(error):  # plain HTTP
        return None
      raise

  def sha256(self, file: str, size: int) -> str:
    """Return the hexadecimal SHA-256 of a file of `size` bytes."""
    digest = hashlib.sha256()
    for start in range(0, size, _READ_BYTES):
      try:
        data = (self._root / file).read(slice(start, min(start + _READ_BYTES, size)))
      except OSError as error:
        raise UserError(f"{self.name(file)}: cannot be read ({one_line(error)}): {self._remedy}") from error
      digest.update(self._present(file, data))
    return digest.hexdigest()

  def _present(self, file: str, data: bytes | None) -> bytes:
    if data is None:
      raise UserError(f"{self.name(file)}: found no such file: copy it again or {self._remedy}")
    return data


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


class LocalFiles(Files):
  """The files of a directory on a disk."""

  def __init__(self, root: Local, remedy: str):
    super().__init__(root, remedy)
    self._serial = next(_serials)

  def __del__(self, pool=_pool):
    pool.forget(self._serial)

  def fill(self, shards: Shards, array: str, reads: Sequence[Read]) -> None:
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
              f"{offset}: the file is truncated; copy it again or {self._remedy}"
            )
          offset, into = offset + done, into[done:]
      except OSError as error:
        raise self._refusal(shards.file(array, shard), error) from error

  def _open(self, shards: Shards, array: str, shard: int) -> _Descriptor:
    return _pool.open((self._serial, array, shard), self.name(shards.file(array, shard)))

  def _refusal(self, file: str, error: OSError) -> UserError:
    if error.errno in (errno.EMFILE, errno.ENFILE):
      return UserError(
        f"{self.name(file)}: cannot be opened ({error.strerror}): raise the limit of open files (ulimit -n)"
      )
    return UserError(f"{self.name(file)}: cannot be read ({error.strerror}): copy it again or {self._remedy}")


class _Budget:
  """The unused part of the cache shared by all stores."""

  def __init__(self, left: int):
    self._left, self._lock = left, threading.Lock()

  def take(self, size: int) -> bool:
    """Take `size` bytes if that many are left and return whether it did; a negative size gives bytes back."""
    with self._lock:
      if size > self._left:
        return False
      self._left -= size
      return True


_budget = _Budget(CACHE_BYTES)


class RemoteFiles(Files):
  """The files of a directory at an address."""

  def __init__(self, root: Remote, remedy: str):
    self._budget, self._taken = _budget, 0  # bytes taken from the cache budget
    super().__init__(root, remedy)
    self._kept: bool | None = None  # whether blocks stay cached; decided at the first read
    self._blocks: dict[tuple[str, int], threading.Event | bytes] = {}
    self._lock = threading.Lock()

  def __del__(self):
    self._budget.take(-self._taken)

  def read(self, file: str) -> bytes | None:
    return self._root.read_many([(file, None)], PATIENCE_SECONDS)[0]

  def fill(self, shards: Shards, array: str, reads: Sequence[Read]) -> None:
    if self._kept is None:
      self._decide(shards.num_bytes)
    if not self._kept:
      ranges = [(shards.file(array, shard), slice(offset, offset + len(into))) for shard, offset, into in reads]
      for (_, _, into), data in zip(reads, self._ranges(ranges), strict=True):
        into[:] = data
      return
    files = {shard: shards.file(array, shard) for shard, _, _ in reads}
    keys = {
      (files[shard], block): (shard, block)
      for shard, offset, into in reads
      for block in range(offset // _BLOCK, (offset + len(into) - 1) // _BLOCK + 1)
    }
    blocks = self._read_blocks({key: shards.size(array, shard) for key, (shard, _) in keys.items()})
    for shard, offset, into in reads:
      while len(into):
        block, begin = divmod(offset, _BLOCK)
        part = blocks[files[shard], block][begin : begin + len(into)]
        into[: len(part)] = part
        into, offset = into[len(part) :], offset + len(part)

  def _decide(self, size: int) -> None:
    with self._lock:
      if self._kept is None:
        self._kept = self._budget.take(size)
        self._taken = size if self._kept else 0

  def _read_blocks(self, sizes: dict[tuple[str, int], int]) -> dict[tuple[str, int], bytes]:
    """Read blocks of files, given the files' sizes; concurrent callers share each read."""
    blocks, own = {}, {}
    with self._lock:
      for key, size in sizes.items():
        found = self._blocks.get(key)
        if found is None:
          found = self._blocks[key] = threading.Event()
          own[key] = slice(key[1] * _BLOCK, min((key[1] + 1) * _BLOCK, size))
        blocks[key] = found
    if own:
      events = {key: blocks[key] for key in own}
      try:
        found = dict(zip(own, self._ranges([(file, own[file, block]) for file, block in own]), strict=True))
        self._blocks.update(found)
        blocks.update(found)
      except BaseException:
        for key in own:  # the next caller tries again
          self._blocks.pop(key, None)
        raise
      finally:
        for event in events.values():
          event.set()
    for key, found in blocks.items():
      if isinstance(found, threading.Event):
        found.wait()
        data = self._blocks.get(key)
        blocks[key] = data if isinstance(data, bytes) else self._read_blocks({key: sizes[key]})[key]
    return blocks

  def _ranges(self, ranges: Sequence[tuple[str, Part]]) -> list[bytes]:
    """Request all ranges at once and return their bytes."""
    found = self._root.read_many(ranges, PATIENCE_SECONDS)
    return [self._present(file, data) for (file, _), data in zip(ranges, found, strict=True)]


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
