"""Ranges of many files of a directory at an address, read in parallel.

A store that fits the process's cache is read in blocks that stay cached: once warm, it is
effectively in memory. Ranges of a larger store are not needed again until the next epoch, so they
are read one by one and not cached. An unanswered read is requested again; after five minutes the
run ends with a one-line error.
"""

import threading
from collections.abc import Sequence
from typing import Any

from t5x_like.files.clients import ByteRange
from t5x_like.files.remote import RemotePath
from t5x_like.files.shard_files import Read, ShardFiles, Shards

CACHE_BYTES = 2**30  # shared by all stores of a process
PATIENCE_SECONDS = 300.0  # for a read at an address, over all attempts
_BLOCK = 2**18


class _Budget:
  """The unused part of the cache shared by all stores."""

  def __init__(self, num_bytes: int):
    self._unused = num_bytes
    self._lock = threading.Lock()

  def take(self, size: int) -> bool:
    """Reserve `size` bytes if that many are unused, and return whether they were.

    A negative size returns bytes to the budget.
    """
    with self._lock:
      if size > self._unused:
        return False
      self._unused -= size
      return True


_budget = _Budget(CACHE_BYTES)


class RemoteShardFiles(ShardFiles):
  """The files of a directory at an address."""

  def __init__(self, root: RemotePath, remedy: str):
    # bytes reserved in the cache budget
    self._budget = _budget
    self._reserved = 0
    super().__init__(root, remedy)
    self._is_cached: bool | None = None  # whether blocks stay cached; decided at the first read
    self._blocks: dict[tuple[str, int], threading.Event | bytes] = {}
    self._lock = threading.Lock()
    self._versions: dict[str, Any] = {}  # of the files that were read, by path
    self._shards: dict[str, tuple[str, int]] = {}  # array and shard of each of them
    self._changed: set[tuple[str, int]] = set()

  def changed(self, shards: Shards) -> list[tuple[str, int]]:
    """Return the files whose version has changed between two answers; this sends no query."""
    changed = sorted(self._changed)
    self._changed.difference_update(changed)
    return changed

  def __del__(self):
    self._budget.take(-self._reserved)

  def read(self, file: str) -> bytes | None:
    return self._root.read_many([(file, None)], PATIENCE_SECONDS)[0]

  def fill(self, shards: Shards, array: str, reads: Sequence[Read]) -> None:
    if self._is_cached is None:
      self._decide(shards.num_bytes)
    files = {shard: shards.file(array, shard) for shard, _, _ in reads}
    self._shards.update({file: (array, shard) for shard, file in files.items()})
    if self._is_cached:
      self._fill_from_blocks(shards, array, reads, files)
      return
    ranges = []
    for shard, offset, into in reads:
      ranges.append((files[shard], slice(offset, offset + len(into))))
    for (_, _, into), data in zip(reads, self._ranges(ranges), strict=True):
      into[:] = data

  def _fill_from_blocks(
    self, shards: Shards, array: str, reads: Sequence[Read], files: dict[int, str]
  ) -> None:
    """Read ranges from cached blocks; `files` are the files of the shards."""
    file_sizes = {}
    for shard, offset, into in reads:
      last_block = (offset + len(into) - 1) // _BLOCK
      for block in range(offset // _BLOCK, last_block + 1):
        file_sizes[files[shard], block] = shards.size(array, shard)
    blocks = self._read_blocks(file_sizes)
    for shard, offset, into in reads:
      while len(into):
        block, begin = divmod(offset, _BLOCK)
        data = blocks[files[shard], block][begin : begin + len(into)]
        into[: len(data)] = data
        into = into[len(data) :]
        offset += len(data)

  def _decide(self, size: int) -> None:
    with self._lock:
      if self._is_cached is None:
        self._is_cached = self._budget.take(size)
        self._reserved = size if self._is_cached else 0

  def _read_blocks(self, sizes: dict[tuple[str, int], int]) -> dict[tuple[str, int], bytes]:
    """Read blocks of files, given the files' sizes; concurrent callers share each read."""
    blocks = {}
    own_ranges = {}
    with self._lock:
      for (file, block), size in sizes.items():
        content = self._blocks.get((file, block))
        if content is None:
          content = threading.Event()
          self._blocks[file, block] = content
          own_ranges[file, block] = slice(block * _BLOCK, min((block + 1) * _BLOCK, size))
        blocks[file, block] = content
    if own_ranges:
      events = [blocks[key] for key in own_ranges]
      try:
        ranges = [(file, byte_range) for (file, _), byte_range in own_ranges.items()]
        contents = dict(zip(own_ranges, self._ranges(ranges), strict=True))
        self._blocks.update(contents)
        blocks.update(contents)
      except BaseException:
        for key in own_ranges:  # the next caller tries again
          self._blocks.pop(key, None)
        raise
      finally:
        for event in events:
          event.set()
    for key, content in blocks.items():
      if isinstance(content, threading.Event):
        content.wait()
        data = self._blocks.get(key)
        if not isinstance(data, bytes):
          data = self._read_blocks({key: sizes[key]})[key]
        blocks[key] = data
    return blocks

  def _ranges(self, ranges: Sequence[tuple[str, ByteRange]]) -> list[bytes]:
    """Request all ranges at once and return their bytes."""
    versions: dict[str, Any] = {}
    contents = self._root.read_many(ranges, PATIENCE_SECONDS, versions)
    for file, version in versions.items():
      if self._versions.setdefault(file, version) != version:
        self._versions[file] = version
        self._changed.add(self._shards[file])
    return [self._present(file, data) for (file, _), data in zip(ranges, contents, strict=True)]
