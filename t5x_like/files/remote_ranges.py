"""Read ranges of many files of a remote directory in parallel.

A store that fits the process's cache is read in blocks that stay cached: once warm, it is
effectively in memory. Ranges of a larger store are not needed again until the next epoch, so they
are read one by one and not cached. An unanswered read is requested again; after five minutes the
run ends with a one-line error.
"""

import collections
import threading
from collections.abc import Sequence
from typing import Any

from t5x_like.files.clients import ByteRange
from t5x_like.files.remote import RemotePath
from t5x_like.files.shard_files import Read, ShardFiles, Shards

CACHE_BYTES = 2**30  # shared by all stores of a process
READ_SECONDS = 300.0  # the time for one remote read, over all attempts
_BLOCK_BYTES = 2**18


class _Budget:
  """The unused part of the cache shared by all stores."""

  def __init__(self, num_bytes: int):
    self._unused = num_bytes
    self._returned_sizes: collections.deque[int] = collections.deque()
    self._lock = threading.Lock()

  def take(self, size: int) -> bool:
    """Reserve `size` bytes if that many are unused, and return whether they were."""
    with self._lock:
      while self._returned_sizes:
        self._unused += self._returned_sizes.popleft()
      if size > self._unused:
        return False
      self._unused -= size
      return True

  def give_back(self, size: int) -> None:
    """Make `size` reserved bytes unused again.

    It takes no lock: the garbage collector may call it while this thread is in `take`.
    """
    self._returned_sizes.append(size)


_budget = _Budget(CACHE_BYTES)


class RemoteShardFiles(ShardFiles):
  """The files of a remote directory."""

  def __init__(self, root: RemotePath, remedy: str):
    self._budget = _budget
    self._reserved_bytes = 0  # of the budget
    super().__init__(root, remedy)
    self._is_cached: bool | None = None  # whether blocks stay cached; decided at the first read
    # The block of each (file, number), or an event that is set when a thread has read it.
    self._blocks: dict[tuple[str, int], threading.Event | bytes] = {}
    self._lock = threading.Lock()
    self._versions: dict[str, Any] = {}  # by path, of the files that were read
    self._shards: dict[str, tuple[str, int]] = {}  # (array, shard) by path, of the same files
    self._changed: set[tuple[str, int]] = set()  # (array, shard)

  def changed(self, shards: Shards) -> list[tuple[str, int]]:
    """Return array and shard of the files that changed between two reads, without a request."""
    changed = sorted(self._changed)
    self._changed.difference_update(changed)
    return changed

  def __del__(self):
    self._budget.give_back(self._reserved_bytes)

  def read(self, file: str) -> bytes | None:
    return self._root.read_many([(file, None)], READ_SECONDS)[0]

  def fill(self, shards: Shards, array: str, reads: Sequence[Read]) -> None:
    if self._is_cached is None:
      self._decide_caching(shards.num_bytes)
    files = {shard: shards.file(array, shard) for shard, _, _ in reads}
    self._shards.update({file: (array, shard) for shard, file in files.items()})
    if self._is_cached:
      self._fill_from_blocks(shards, array, reads, files)
      return
    ranges = []
    for shard, offset, buffer in reads:
      ranges.append((files[shard], slice(offset, offset + len(buffer))))
    for (_, _, buffer), content in zip(reads, self._read_ranges(ranges), strict=True):
      buffer[:] = content

  def _fill_from_blocks(
    self, shards: Shards, array: str, reads: Sequence[Read], files: dict[int, str]
  ) -> None:
    """Read ranges from cached blocks; `files` are the files of the shards."""
    file_sizes = {}
    for shard, offset, buffer in reads:
      first_block = offset // _BLOCK_BYTES
      last_block = (offset + len(buffer) - 1) // _BLOCK_BYTES
      for block in range(first_block, last_block + 1):
        file_sizes[files[shard], block] = shards.size(array, shard)
    blocks = self._read_blocks(file_sizes)
    for shard, offset, buffer in reads:
      while len(buffer):
        block, begin = divmod(offset, _BLOCK_BYTES)
        content = blocks[files[shard], block][begin : begin + len(buffer)]
        buffer[: len(content)] = content
        buffer = buffer[len(content) :]
        offset += len(content)

  def _decide_caching(self, size: int) -> None:
    """Cache blocks if the budget still has the `size` bytes of the whole store."""
    with self._lock:
      if self._is_cached is None:
        self._is_cached = self._budget.take(size)
        self._reserved_bytes = size if self._is_cached else 0

  def _read_blocks(self, sizes: dict[tuple[str, int], int]) -> dict[tuple[str, int], bytes]:
    """Return blocks of files; threads that need the same block at once share one read of it.

    Args:
      sizes: size of the file of each (file, number of the block).
    """
    blocks = {}
    unread = {}
    with self._lock:
      for key, size in sizes.items():
        content = self._blocks.get(key)
        if content is None:
          content = threading.Event()
          self._blocks[key] = content
          _, block = key
          unread[key] = slice(block * _BLOCK_BYTES, min((block + 1) * _BLOCK_BYTES, size))
        blocks[key] = content
    if unread:
      blocks.update(self._cache_blocks(unread))
    for key, content in blocks.items():
      if isinstance(content, threading.Event):
        blocks[key] = self._wait_for_block(key, content, sizes[key])
    return blocks

  def _wait_for_block(self, key: tuple[str, int], event: threading.Event, size: int) -> bytes:
    """Return a block that another thread reads; read it here if that thread fails."""
    event.wait()
    content = self._blocks.get(key)
    if isinstance(content, bytes):
      return content
    return self._read_blocks({key: size})[key]

  def _cache_blocks(self, unread: dict[tuple[str, int], slice]) -> dict[tuple[str, int], bytes]:
    """Read blocks into the cache, and wake the threads that wait for them.

    Args:
      unread: range of bytes of each block, by file and number; each has an event in `_blocks`.
    """
    events = [self._blocks[key] for key in unread]
    ranges = [(file, byte_range) for (file, _), byte_range in unread.items()]
    try:
      blocks = dict(zip(unread, self._read_ranges(ranges), strict=True))
      self._blocks.update(blocks)
      return blocks
    except BaseException:
      for key in unread:  # the next caller tries again
        self._blocks.pop(key, None)
      raise
    finally:
      for event in events:
        event.set()

  def _read_ranges(self, ranges: Sequence[tuple[str, ByteRange]]) -> list[bytes]:
    """Request all ranges of files at once, and note the files whose version has changed."""
    versions: dict[str, Any] = {}
    contents = self._root.read_many(ranges, READ_SECONDS, versions)
    for file, version in versions.items():
      if self._versions.setdefault(file, version) != version:
        self._versions[file] = version
        self._changed.add(self._shards[file])
    for (file, _), content in zip(ranges, contents, strict=True):
      self._check_exists(file, content)
    return contents
