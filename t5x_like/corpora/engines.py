"""The engines of a preparation job: build its parts in local processes or on Apache Beam, then publish its store."""

import collections
import concurrent.futures
import contextlib
import functools
import itertools
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from t5x_like.corpora import building, comparing, duplicates, progress_bar, progress_files
from t5x_like.corpora.job import Batch, Job, Tokenised, parts_of, tokenise
from t5x_like.errors import UserError
from t5x_like.files import locks
from t5x_like.files.locks import Lease, Lock
from t5x_like.files.places import Remote, place

_BATCHES_AHEAD = 3  # per worker; bounds memory if the consumer is slow
_LOOK_SECONDS, _STUCK_SECONDS = 0.5, 3.0


def run(job: Job, path: str, *, workers: int, pipeline: Sequence[str] | None = None, **of_manifest: Any) -> None:
  """Build the store of a job, resuming an interrupted run.

  Args:
    job: the job.
    path: path of the store.
    workers: number of processes without Beam.
    pipeline: options of a Beam pipeline that builds the parts; None builds them here.
    **of_manifest: `name`, `split` and `source` of the manifest.

  Raises:
    UserError: another process builds it, the files cannot be written, or the source or vocabulary cannot be used.
  """
  split = of_manifest["split"]
  with _begun(job) as check:
    parts = len(parts_of(job))
    if left := duplicates.missing(job):
      with progress_bar.shown(job, "signatures", f"{split}, signatures", "documents"):
        _mark_duplicates(job, left, parts, workers, pipeline)
    with progress_bar.shown(job, "parts", split, "tokens"):
      if pipeline is not None:
        from t5x_like.corpora import beam

        beam.run(functools.partial(building.make_part, job), parts, pipeline, f"{job.progress}/refusals")
      else:
        _make_in_processes(job, parts, workers)
    records = [building.record_of(job, number) for number in range(parts)]
    made = building.described(job, records, **of_manifest)
    check()
    building.publish(job, path, made)


def _worker() -> None:
  """Set up a worker process: one thread for the tokenizers library, and exit when the parent ends."""
  os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
  parent = multiprocessing.parent_process()

  def follow() -> None:
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)  # the parent was killed; otherwise it would have ended this process

  threading.Thread(target=follow, daemon=True).start()


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[concurrent.futures.Executor]:
  ended = threading.Event()
  with concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _worker) as pool:
    watch = threading.Thread(target=_end_if_stuck, args=(pool, ended), daemon=True)
    watch.start()
    try:
      yield pool
    except concurrent.futures.process.BrokenProcessPool as error:
      raise UserError(
        "a tokenising process was killed, by the system if memory ran out: lower --workers and run the "
        "same command again"
      ) from error
    finally:
      ended.set()
      watch.join()
      pool.shutdown(cancel_futures=True)


def _end_if_stuck(pool: concurrent.futures.ProcessPoolExecutor, ended: threading.Event) -> None:
  """Break a pool if a process was killed while sending a result: the pool would wait forever for the rest.

  The dead process also keeps the lock that the others need to send their results. The pipe ends once neither they nor
  this process hold its other end; then the pool notices by itself. There is no public interface for this.
  """
  while not ended.wait(_LOOK_SECONDS):
    if all(process.exitcode is None for process in [*(pool._processes or {}).values()]):
      continue
    if ended.wait(_STUCK_SECONDS) or pool._broken:  # usually the pool has noticed
      return
    for process in [*(pool._processes or {}).values()]:
      process.kill()
    pool._result_queue._writer.close()
    return


def _spread(pool: concurrent.futures.Executor, workers: int, job: Job, batches: Iterator[Batch]) -> Iterator[Tokenised]:
  """Tokenise batches in the processes of the pool and yield the results in order."""

  def submit(batch: Batch) -> concurrent.futures.Future:
    return pool.submit(tokenise, job, batch)

  ahead = collections.deque(map(submit, itertools.islice(batches, workers * _BATCHES_AHEAD)))
  while ahead:
    yield ahead.popleft().result()
    ahead.extend(map(submit, itertools.islice(batches, 1)))


def _make_in_processes(job: Job, parts: int, workers: int) -> None:
  """Build the parts: one per process if there are enough, else one after another with their batches spread."""
  if workers == 1:
    for number in range(parts):
      building.make_part(job, number)
    return
  with _pool(workers) as pool:
    if parts < 2 * workers:
      for number in range(parts):
        building.make_part(job, number, functools.partial(_spread, pool, workers, job))
      return
    for future in concurrent.futures.as_completed([pool.submit(building.make_part, job, n) for n in range(parts)]):
      future.result()


def _mark_duplicates(
  job: Job, left: list[duplicates.Comparison], parts: int, workers: int, pipeline: Sequence[str] | None
) -> None:
  """Sign the parts and make the remaining comparisons."""
  sign = functools.partial(duplicates.sign, job)
  if pipeline is not None:
    from t5x_like.corpora import beam

    beam.run(sign, parts, pipeline, f"{job.progress}/refusals")
    for one in left:
      beam.compare(job, one, parts, pipeline, f"{job.progress}/refusals")
    return
  with contextlib.nullcontext() if workers == 1 or parts == 1 else _pool(workers) as pool:
    each = pool.map if pool else map
    collections.deque(each(sign, range(parts)), maxlen=0)
    for one in left:
      comparing.run(job, one, parts, each)


@contextlib.contextmanager
def _begun(job: Job) -> Iterator[Callable[[], None]]:
  """Create the job's directories, empty them if another job left them, and keep other processes out by a lock or, at an
  address, a lease. Yield a function to call before publishing the store; it raises if the lease was lost."""
  progress, work, mine = place(job.progress), place(job.work), contextlib.ExitStack()
  check: Callable[[], None] = lambda: None  # noqa: E731 -- a lock cannot be lost
  try:
    progress.mkdir(parents=True, exist_ok=True)
    if isinstance(progress, Remote):
      check = mine.enter_context(Lease(progress.parent, f"{progress.name}.lease", locks.WRITING)).check
    else:
      try:
        mine.enter_context(Lock(progress))
      except OSError as error:
        raise UserError(f"{progress}: another process is writing this store: wait for it or stop it") from error
    if progress_files.is_written(job.progress):
      raise UserError(f"{progress}: a process of an interrupted run still writes this store: wait for it or stop it")
    record = progress / "job"
    if not record.exists() or record.read_text() != job.key:
      if record.exists():
        print(f"{progress}: left by a run with other inputs or files that changed since; starting anew", flush=True)
      for leftover in (*progress.iterdir(), work):
        if leftover.exists():
          leftover.rmtree() if leftover.is_dir() else leftover.unlink()
      record.write_text(job.key)
    work.mkdir(parents=True, exist_ok=True)
    yield check
  except OSError as error:
    raise UserError(f"{progress}: cannot be written ({error}): free some space or choose another --output") from error
  finally:
    mine.close()
