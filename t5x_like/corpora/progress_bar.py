"""Show a job's progress from its parts' reports: a bar on a terminal, else a line at intervals.

Bytes are the stored sizes of the source's files. A part in progress counts by its tokens or
documents, at the bytes per token or document of the finished parts.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from tqdm import tqdm

from t5x_like.corpora.job import Job
from t5x_like.errors import TransientError, UserError

_POLL_SECONDS = 1.0
_LINE_SECONDS = 30.0


class _Parts:
  """The parts of one stage of a job, with the bytes, tokens or documents done."""

  def __init__(self, job: Job, stage: str):
    self._directory = job.progress / "now" / stage
    self._sizes = [job.kind.part_size(number) for number in range(job.kind.num_parts)]
    self._finished_amounts: dict[int, int] = {}
    self.total = sum(self._sizes)

  def read_progress(self) -> tuple[int, int]:
    """Return (bytes done, amount done)."""
    in_progress = self._read_reports()
    amount = sum(self._finished_amounts.values())
    size = sum(self._sizes[number] for number in self._finished_amounts)
    if amount:
      for number, part_amount in in_progress.items():
        # at the bytes per amount of the finished parts
        size += min(self._sizes[number], part_amount * size // amount)
    return size, amount + sum(in_progress.values())

  def _read_reports(self) -> dict[int, int]:
    """Record the parts that have finished; return the amounts of those in progress, by number."""
    in_progress = {}
    with contextlib.suppress(OSError, UserError, TransientError):
      for path in self._directory.iterdir():
        # a file that is being written cannot be parsed
        with contextlib.suppress(OSError, UserError, TransientError, ValueError):
          number = int(path.name)
          if number in self._finished_amounts:
            continue
          amount, is_done = map(int, path.read_text().split())
          if is_done:
            self._finished_amounts[number] = amount
          else:
            in_progress[number] = amount
    return in_progress


@contextlib.contextmanager
def show_progress(job: Job, stage: str, title: str, unit: str) -> Iterator[None]:
  """Show the progress of a stage while the block runs.

  Args:
    job: the job.
    stage: `parts`, or `signatures` of the items to compare.
    title: the text before the bar.
    unit: the name of the amounts that the parts report.
  """
  display = _Display(job, stage, title, unit)
  stop = threading.Event()

  def watch() -> None:
    while not stop.wait(_POLL_SECONDS):
      display.update()

  thread = threading.Thread(target=watch, daemon=True)
  thread.start()
  try:
    yield
  finally:
    stop.set()
    thread.join()
    display.update()
    display.close()


class _Display:
  """A progress bar, or lines if stderr is no terminal."""

  def __init__(self, job: Job, stage: str, title: str, unit: str):
    self._parts = _Parts(job, stage)
    self._title = title
    self._unit = unit
    self._first_size, self._first_amount = self._parts.read_progress()
    self._start_time = time.monotonic()
    self._last_line = self._start_time
    self._bar = tqdm(
      total=self._parts.total,
      initial=self._first_size,
      desc=title,
      unit="B",
      unit_scale=True,
      smoothing=0,
      disable=None,
      dynamic_ncols=True,
    )

  def update(self) -> None:
    """Read the progress and show it; lines are printed at intervals."""
    size, amount = self._parts.read_progress()
    now = time.monotonic()
    seconds = max(now - self._start_time, 1e-9)
    speed = tqdm.format_sizeof((amount - self._first_amount) / seconds)
    amounts = f"{tqdm.format_sizeof(amount)} {self._unit}, {speed}/s"
    if not self._bar.disable:
      self._bar.n = size
      self._bar.set_postfix_str(amounts)
    elif now - self._last_line >= _LINE_SECONDS:
      self._last_line = now
      self._print_line(size, amounts, seconds)

  def close(self) -> None:
    self._bar.close()

  def _print_line(self, size: int, amounts: str, seconds: float) -> None:
    total = self._parts.total
    bytes_per_second = (size - self._first_size) / seconds
    remaining = "time left unknown"
    if bytes_per_second:
      remaining = f"about {tqdm.format_interval((total - size) / bytes_per_second)} left"
    print(
      f"{self._title}: {100 * size / max(1, total):.0f}% of {tqdm.format_sizeof(total)}B, "
      f"{amounts}, {remaining}",
      file=sys.stderr,
      flush=True,
    )
