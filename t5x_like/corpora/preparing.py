"""Preparation of a store: sign and compare its parts, build them, publish; resumed after any
interruption."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from t5x_like.corpora import building, duplicates, progress_bar, progress_files
from t5x_like.corpora.engines import Engine
from t5x_like.corpora.job import Job
from t5x_like.errors import UserError
from t5x_like.files import exclusive
from t5x_like.files.remote import RemotePath


def prepare(jobs: Sequence[Job], engine: Engine) -> list[dict[str, int]]:
  """Make the stores of jobs and publish them together, so that a failure leaves none of them.

  Args:
    jobs: the jobs.
    engine: where parts are built.

  Returns:
    For each job, the amounts removed from items or changed in them, by reason.

  Raises:
    UserError: another process builds it, the files cannot be written, or the source or vocabulary
      cannot be used.
  """
  with contextlib.ExitStack() as held:
    checks = [held.enter_context(_begun(job)) for job in jobs]
    records = [_records(job, engine) for job in jobs]
    made = [building.build_contents(job, parts) for job, parts in zip(jobs, records, strict=True)]
    for job, check, contents in zip(jobs, checks, made, strict=True):
      check()
      building.publish(job, contents)
  return [sum((Counter(part["removed"]) for part in parts), Counter()) for parts in records]


def _check_source(job: Job) -> None:
  try:
    current = job.kind.is_current()
  except OSError:  # a file is gone
    current = False
  if not current:
    raise UserError(
      f"{job.name}, split {job.split!r}: the source's files changed while they were read, so that "
      "the store would mix old and new ones; run the same command again once nothing writes to "
      "them"
    )


def _records(job: Job, engine: Engine) -> list[dict[str, Any]]:
  """Build the parts of a job and return their records."""
  if left := duplicates.missing_comparisons(job):
    with progress_bar.show_progress(job, "signatures", f"{job.split}, signatures", job.kind.items):
      engine.sign(job)
      for one in left:
        engine.compare(job, one)
  building.remove_surplus(job)
  with progress_bar.show_progress(job, "parts", job.split, job.kind.unit):
    engine.make(job)
  _check_source(job)
  return [building.load_record(job, number) for number in range(job.kind.num_parts)]


@contextlib.contextmanager
def _begun(job: Job) -> Iterator[Callable[[], None]]:
  """Create the job's directories, empty them if another job left them, and keep other processes out
  by a lock or, where there are none, a lease. Yield a function to call before publishing the store;
  it raises if the lease was lost."""
  progress = job.progress
  work = job.work
  mine = contextlib.ExitStack()
  try:
    progress.mkdir(parents=True, exist_ok=True)
    held = exclusive.hold_directory(
      progress.parent, progress.name, exclusive.WRITING, f"{progress.name}.lease"
    )
    mine.enter_context(contextlib.closing(held))
    if progress_files.is_written(job.progress):
      raise UserError(
        f"{progress}: a process of an interrupted run still writes this store: wait "
        "for it or stop it"
      )
    record = progress / "job"
    if record.exists() and record.read_text() == job.key:
      print(
        f"{progress}: left by an interrupted run with the same inputs; going on from there",
        flush=True,
      )
    else:
      if record.exists():
        print(
          f"{progress}: left by a run with other inputs or files that changed since; starting anew",
          flush=True,
        )
      elif found := isinstance(work, RemotePath) and list(work.sizes()):
        raise UserError(
          f"{work}: found {len(found):,} files that no preparation has left there, such as "
          f"{min(found)}, expected an "
          "empty place for the store; choose another output, or remove them"
        )
      # the record last: it says that the others may go
      for leftover in (work, *progress.iterdir()):
        if leftover.exists():
          leftover.rmtree() if leftover.is_dir() else leftover.unlink()
      record.write_text(job.key)
    work.mkdir(parents=True, exist_ok=True)
    yield held.check
  except OSError as error:
    raise UserError(
      f"{progress}: cannot be written ({error}): free some space or choose another output"
    ) from error
  finally:
    mine.close()
