"""Prepare stores: find duplicates, build the parts and publish them; resume if interrupted."""

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
    jobs: jobs of the stores.
    engine: engine that builds the parts.

  Returns:
    For each job, the amounts that were removed from its items or changed in them, by reason.

  Raises:
    UserError: another process builds a store, the files cannot be written, or the source or
      vocabulary cannot be used.
  """
  with contextlib.ExitStack() as stack:
    lease_checks = [stack.enter_context(_reserve_directories(job)) for job in jobs]
    records = [_build_parts(job, engine) for job in jobs]
    contents = []
    for job, job_records in zip(jobs, records, strict=True):
      contents.append(building.build_contents(job, job_records))
    for job, check_lease, job_contents in zip(jobs, lease_checks, contents, strict=True):
      check_lease()
      building.publish(job, job_contents)
  removed = []
  for job_records in records:
    removed.append(sum((Counter(record["removed"]) for record in job_records), Counter()))
  return removed


def _check_source(job: Job) -> None:
  """Raise UserError if the source's files have changed."""
  try:
    is_current = job.kind.is_current()
  except OSError:  # a file is gone
    is_current = False
  if not is_current:
    raise UserError(
      f"{job.name}, split {job.split!r}: the source's files changed while they were read, so that "
      "the store would mix old and new ones; run the same command again once nothing writes to them"
    )


def _build_parts(job: Job, engine: Engine) -> list[dict[str, Any]]:
  """Build the parts of a job and return their records."""
  comparisons = duplicates.missing_comparisons(job)
  if comparisons:
    title = f"{job.split}, signatures"
    with progress_bar.show_progress(job, "signatures", title, job.kind.items):
      engine.sign(job)
      for comparison in comparisons:
        engine.compare(job, comparison)
  building.remove_surplus(job)
  with progress_bar.show_progress(job, "parts", job.split, job.kind.unit):
    engine.make(job)
  _check_source(job)
  return [building.load_record(job, number) for number in range(job.kind.num_parts)]


@contextlib.contextmanager
def _reserve_directories(job: Job) -> Iterator[Callable[[], None]]:
  """Create the job's directories `progress` and `work`, and keep other processes out of them.

  A lock, or a lease where there are no locks, keeps others out. Directories that another job left
  are emptied. Yields a function to call before publishing the store, which raises if the lease was
  lost.
  """
  progress = job.progress
  with contextlib.ExitStack() as stack:
    try:
      progress.mkdir(parents=True, exist_ok=True)
      lock = exclusive.hold_directory(
        progress.parent, progress.name, exclusive.WRITING, f"{progress.name}.lease"
      )
      stack.enter_context(contextlib.closing(lock))
      if progress_files.has_writer(progress):
        raise UserError(
          f"{progress}: a process of an interrupted run still writes this store; wait "
          "for it or stop it"
        )
      _clear_unless_resumed(job)
      job.work.mkdir(parents=True, exist_ok=True)
      yield lock.check
    except OSError as error:
      raise UserError(
        f"{progress}: cannot be written ({error}): free some space or choose another output"
      ) from error


def _clear_unless_resumed(job: Job) -> None:
  """Empty the job's directories unless an interrupted run of the same job left them."""
  progress = job.progress
  work = job.work
  key_file = progress / "job"
  if key_file.exists() and key_file.read_text() == job.key:
    print(
      f"{progress}: left by an interrupted run with the same inputs; going on from there",
      flush=True,
    )
    return
  if key_file.exists():
    print(
      f"{progress}: left by a run with other inputs, or its files have changed; starting anew",
      flush=True,
    )
  elif isinstance(work, RemotePath):
    files = list(work.sizes())
    if files:
      raise UserError(
        f"{work}: found {len(files):,} files that no preparation has left there, such as "
        f"{min(files)}, expected an empty address for the store; choose another output, or remove "
        "them"
      )
  # The key file is deleted last, because only its presence permits deleting the others.
  for leftover in (work, *progress.iterdir()):
    if leftover.is_dir():
      leftover.rmtree()
    elif leftover.exists():
      leftover.unlink()
  key_file.write_text(job.key)
