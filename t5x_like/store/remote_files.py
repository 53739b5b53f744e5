"""A token store's files at an address, read in ranges through TensorStore or fsspec (`objects.py`).

An element's place in its file is computed, so only the requested windows are read, all windows of a batch at once. A
store that fits the process's cache is read in blocks that stay cached: once warm, it is effectively in memory. Windows
of a larger store are not needed again until the next epoch, so they are read individually and not cached. Transient
errors (429, 5xx, refused or broken connections) are retried with growing delays, and an unanswered read is requested
again. After five minutes the run ends with a one-line error.
"""

import contextlib
import hashlib
import json
import pathlib
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence

from t5x_like.errors import DamageError, TransientError, UserError, answered, is_transient, one_line
from t5x_like.files import answers, file_names, objects
from t5x_like.store.manifest import REMEDY
from t5x_like.store.shards import Shards

CACHE_BYTES = 2**30  # shared by all stores of a process
PATIENCE_SECONDS = 300.0  # for a read, over all attempts
_ATTEMPT_SECONDS = 30.0
_BLOCK = 2**18
_READ_BYTES = 2**24  # per request when a whole file is read

_Range = tuple[str, slice | None]  # a file and a range of its bytes; None is the whole file


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


class RemoteFiles:
  """The files of a store at an address.

  Args:
    url: the address of the store.

  Raises:
    UserError: the address cannot be opened.
  """

  def __init__(self, url: str):
    self._url = url.rstrip("/") + "/"
    self._budget, self._taken = _budget, 0  # bytes taken from the cache budget
    self._kept: bool | None = None  # whether blocks stay cached; decided at the first read
    self._blocks: dict[tuple[str, int], threading.Event | bytes] = {}
    self._lock = threading.Lock()
    self._files = objects.opened(self._url)

  def __del__(self):
    self._budget.take(-self._taken)

  def name(self, file: str) -> str:
    return self._url + file

  def read(self, file: str) -> bytes | None:
    return self._answers([(file, None)])[0]

  def listing(self, directories: Sequence[str]) -> dict[str, int | None] | None:
    pages = [self._files.list(f"{one}/") for one in directories]
    try:
      found = {key: size for page in pages for key, size in page.result(timeout=PATIENCE_SECONDS).items()}
    except Exception as error:
      if "does not support listing" in str(error):  # plain HTTP
        return None
      raise answered(error, self._url, "listed") from error
    if not found:
      objects.look(self._files, self._url, "listed")
    return found

  def sha256(self, file: str, size: int) -> str:
    digest = hashlib.sha256()
    for start in range(0, size, _READ_BYTES):
      digest.update(self._present([(file, slice(start, min(start + _READ_BYTES, size)))])[0])
    return digest.hexdigest()

  def fill(self, shards: Shards, array: str, reads: Sequence[tuple[int, int, memoryview]]) -> None:
    if self._kept is None:
      self._decide(shards.num_bytes)
    if not self._kept:
      ranges = [(shards.file(array, shard), slice(offset, offset + len(into))) for shard, offset, into in reads]
      for (_, _, into), data in zip(reads, self._present(ranges), strict=True):
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

  @contextlib.contextmanager
  def local(self, directory: str) -> Iterator[pathlib.Path]:
    """Copy a directory to a local one; its `vocabulary.json` names its files, so it need not be listed."""
    index = f"{directory}/vocabulary.json"
    text = self.read(index)
    try:
      names = [name for name in json.loads(text or b"{}").get("files", {}) if file_names.is_name(name)]
    except (ValueError, AttributeError) as error:
      raise UserError(f"{self.name(index)}: not valid JSON ({one_line(error)}): {REMEDY}") from error
    with tempfile.TemporaryDirectory() as copy:
      if text is not None:
        pathlib.Path(copy, "vocabulary.json").write_bytes(text)
      for name, data in zip(names, self._answers([(f"{directory}/{name}", None) for name in names]), strict=True):
        if data is not None:
          pathlib.Path(copy, name).write_bytes(data)
      yield pathlib.Path(copy)

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
        found = dict(zip(own, self._present([(file, own[file, block]) for file, block in own]), strict=True))
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

  def _present(self, ranges: Sequence[_Range]) -> list[bytes]:
    """Return `_answers(ranges)`; raise UserError for a missing file."""
    found = self._answers(ranges)
    for (file, _), data in zip(ranges, found, strict=True):
      if data is None:
        raise UserError(f"{self.name(file)}: found no such file: copy it again or {REMEDY}")
    return found

  def _answers(self, ranges: Sequence[_Range]) -> list[bytes | None]:
    """Request all ranges at once and return their bytes; None for a missing file."""
    begin = time.monotonic()
    waiting = [self._files.read(file, part) for file, part in ranges]
    found = []
    for (file, part), future in zip(ranges, waiting, strict=True):
      while True:
        left = begin + PATIENCE_SECONDS - time.monotonic()
        try:
          result = future.result(timeout=max(0.0, min(_ATTEMPT_SECONDS, left)))
          break
        except TimeoutError as error:
          if left <= _ATTEMPT_SECONDS:
            raise TransientError(
              f"{self.name(file)}: no answer for {PATIENCE_SECONDS:g} s, in spite of retries: check the network "
              "and that the store is still there, then run the same command again"
            ) from error
          future = self._files.read(file, part)
        except Exception as error:
          if not is_transient(error):
            raise self._refusal(file, error) from error
          if left <= _ATTEMPT_SECONDS:
            raise TransientError(
              f"{self.name(file)}: cannot be read now ({answers.words(error)}), in spite of retries for "
              f"{PATIENCE_SECONDS:g} s: run the same command again"
            ) from error
          time.sleep(min(1.0, left))
          future = self._files.read(file, part)
      if result.state == "missing":
        objects.look(self._files, self._url, "read")
      elif part and len(result.value) != part.stop - part.start:
        raise self._refusal(file, EOFError(f"{len(result.value)} of {part.stop - part.start} bytes"))
      found.append(None if result.state == "missing" else bytes(result.value))
    return found

  def _refusal(self, file: str, error: Exception) -> Exception:
    told = answered(error, self.name(file), "read")
    if isinstance(told, DamageError) or isinstance(error, EOFError):
      return DamageError(
        f"{self.name(file)}: {answers.Kind.DAMAGED.value} ({answers.words(error)}): copy it again or {REMEDY}"
      )
    return told
