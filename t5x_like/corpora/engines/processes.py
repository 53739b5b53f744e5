"""`processes`: builds the parts of a job in processes of this machine.

To compare documents, each part's entries are written to disk sorted by key. A range of keys is then
one slice of every part's files. Ranges hold about 256 MB each and are matched one after another or
in several processes. Memory holds the ranges that are being matched and the marks of duplicates.
"""

import collections
import concurrent.futures
import contextlib
import functools
import itertools
import math
import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import os
import pathlib
import sys
import tempfile
import threading
import types
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from t5x_like import trust
from t5x_like.corpora import building, duplicates, engines
from t5x_like.corpora.cleaning import Comparison
from t5x_like.corpora.job import ItemBatch, Job, StoredBatch
from t5x_like.errors import UserError
from t5x_like.files.remote import RemotePath

_RANGE_BYTES = 2**28
_BATCHES_AHEAD = 3  # per worker; bounds memory if the consumer is slow
_POLL_SECONDS = 0.5
_STUCK_SECONDS = 3.0


class Engine(engines.Engine):
  """An engine with `workers` processes, or with only this one."""

  def __init__(self, workers: int, options: Sequence[str] = ()):
    self._workers = workers

  def sign(self, job: Job) -> None:
    sign_part = functools.partial(duplicates.sign_part, job)
    with self._map(job) as map_parts:
      for _ in map_parts(sign_part, range(job.kind.num_parts)):
        pass  # `map` is lazy, and its exceptions are raised here

  def compare(self, job: Job, comparison: Comparison) -> None:
    duplicates.begin_comparison(job, comparison)
    parts = job.kind.num_parts
    positions_by_part = collections.defaultdict(list)
    scratch = None if isinstance(job.progress, RemotePath) else job.progress
    with (
      self._map(job) as map_parts,
      tempfile.TemporaryDirectory(prefix=".keys.", dir=scratch) as folder,
    ):
      write = functools.partial(_write_entries, job, comparison, folder)
      size = sum(map_parts(write, range(parts)))
      ranges = max(1, math.ceil(size / _RANGE_BYTES))
      match = functools.partial(_match_range, comparison, folder, parts, ranges)
      for marked_positions in map_parts(match, range(ranges)):
        for part, positions in marked_positions:
          positions_by_part[part].append(positions)
    for part in range(parts):
      duplicates.save_marks(job, comparison, part, positions_by_part.pop(part, ()))
    duplicates.end_comparison(job, comparison)

  def make(self, job: Job) -> None:
    """Build the parts.

    Each process builds one part if there are enough parts. Otherwise they are built one after
    another, with their batches spread over the processes.
    """
    parts = range(job.kind.num_parts)
    if self._workers == 1:
      for number in parts:
        building.make_part(job, number)
      return
    with _pool(self._workers) as pool:
      if len(parts) < 2 * self._workers:
        make_batches = functools.partial(_make_batches, pool, self._workers)
        for number in parts:
          building.make_part(job, number, make_batches)
      else:
        futures = [pool.submit(building.make_part, job, number) for number in parts]
        for future in concurrent.futures.as_completed(futures):
          future.result()

  @contextlib.contextmanager
  def _map(self, job: Job) -> Iterator:
    """Provide `map`, or the `map` of a pool of processes."""
    if self._workers == 1 or job.kind.num_parts == 1:
      yield map
    else:
      with _pool(self._workers) as pool:
        yield pool.map


def _write_entries(job: Job, comparison: Comparison, folder: str, number: int) -> int:
  """Write a part's entries, sorted by key, and return their size in bytes."""
  entries = duplicates.load_entries(job, comparison, number)
  order_n = np.argsort(entries["key"], kind="stable")
  part_folder = pathlib.Path(folder, str(number))
  part_folder.mkdir()
  for name, values in entries.items():
    np.save(part_folder / f"{name}.npy", values[order_n])
  return sum(values.nbytes for values in entries.values())


def _match_range(
  comparison: Comparison, folder: str, parts: int, ranges: int, number: int
) -> duplicates.MarkedPositions:
  """Mark duplicates in range `number` of `ranges` equal ranges of keys."""
  low_key = np.uint64(2**64 * number // ranges)
  is_last = number + 1 == ranges
  high_key = None if is_last else np.uint64(2**64 * (number + 1) // ranges)
  pieces = []
  for part in range(parts):
    entries = {}
    for file in pathlib.Path(folder, str(part)).iterdir():
      entries[file.stem] = np.load(file, mmap_mode="r")
    low = int(np.searchsorted(entries["key"], low_key))
    high = entries["key"].size if is_last else int(np.searchsorted(entries["key"], high_key))
    # Copied, because slices of the memory maps would keep the files open.
    pieces.append((part, {name: np.array(values[low:high]) for name, values in entries.items()}))
  return duplicates.match_entries(comparison, pieces)


def _make_batches(
  pool: concurrent.futures.Executor, workers: int, job: Job, batches: Iterable[ItemBatch]
) -> Iterator[StoredBatch]:
  """Make batches in the processes of the pool and yield the results in order."""
  remaining = iter(batches)

  def submit(count: int) -> list[concurrent.futures.Future]:
    return [pool.submit(job.kind.make, batch) for batch in itertools.islice(remaining, count)]

  futures = collections.deque(submit(workers * _BATCHES_AHEAD))
  while futures:
    yield futures.popleft().result()
    futures.extend(submit(1))


def _start_worker(admitted_names: trust.State) -> None:
  """Set up a worker process: one thread for the tokenizers library, and exit when the parent ends.

  Args:
    admitted_names: names that the command admits (see `trust`); a worker does not have its flags.
  """
  trust.set_state(admitted_names)
  os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
  parent = multiprocessing.parent_process()

  def exit_with_parent() -> None:
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)  # the parent was killed; otherwise it would have ended this process

  threading.Thread(target=exit_with_parent, daemon=True).start()


class _Process(multiprocessing.context.SpawnProcess):
  """A process that does not run the program's main file.

  Spawned processes import the main file. A script without a `__main__` guard would prepare the
  store again there, and wait for its parent, which is making the same store.
  """

  def start(self) -> None:
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
      super().start()
    finally:
      sys.modules["__main__"] = main


class _Spawn(multiprocessing.context.SpawnContext):
  Process = _Process


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[concurrent.futures.Executor]:
  """Provide a pool of processes.

  Raises:
    UserError: a process was killed.
  """
  ended = threading.Event()
  with concurrent.futures.ProcessPoolExecutor(
    workers, _Spawn(), _start_worker, (trust.current_state(),)
  ) as pool:
    watch = threading.Thread(target=_end_if_stuck, args=(pool, ended), daemon=True)
    watch.start()
    try:
      yield pool
    except concurrent.futures.process.BrokenProcessPool as error:
      raise UserError(
        "a tokenising process was killed, by the system if memory ran out: lower --workers and "
        "run the same command again"
      ) from error
    finally:
      ended.set()
      watch.join()
      pool.shutdown(cancel_futures=True)


def _end_if_stuck(pool: concurrent.futures.ProcessPoolExecutor, ended: threading.Event) -> None:
  """Break a pool if a process was killed while sending a result.

  The pool would wait forever for the remainder of the result, and the other processes for the lock
  that the dead one holds. When they are killed and this process closes its writing end of the pipe,
  the pool reads the end of the pipe and breaks. There is no public interface for this.
  """
  while not ended.wait(_POLL_SECONDS):
    if all(process.exitcode is None for process in _pool_processes(pool)):
      continue
    if ended.wait(_STUCK_SECONDS) or pool._broken:  # usually the pool has noticed by itself
      return
    for process in _pool_processes(pool):
      process.kill()
    pool._result_queue._writer.close()
    return


def _pool_processes(pool: concurrent.futures.ProcessPoolExecutor) -> list:
  """Return the processes of a pool; none before its first task and after its shutdown."""
  processes_by_id = pool._processes or {}
  return list(processes_by_id.values())
