"""A job's progress, from the reports of its parts: a bar in a terminal, else a line every 30
seconds.

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

_LOOK_SECONDS = 1.0
_LINE_SECONDS = 30.0


class _Parts:
  """The parts of one stage of a job, with the bytes, tokens or documents done."""

  def __init__(self, job: Job, stage: str):
    self._directory = job.progress / "now" / stage
    self._sizes = [job.kind.part_size(number) for number in range(job.kind.num_parts)]
    self._done: dict[int, int] = {}
    self.total = sum(self._sizes)

  def look(self) -> tuple[int, int]:
    """Return (bytes done, amount done)."""
    under_way = {}
    with contextlib.suppress(OSError, UserError, TransientError):
      for path in self._directory.iterdir():
        # a file is being written
        with contextlib.suppress(OSError, UserError, TransientError, ValueError):
          if (number := int(path.name)) not in self._done:
            amount, done = map(int, path.read_text().split())
            (self._done if done else under_way)[number] = amount
    amount = sum(self._done.values())
    size = sum(self._sizes[number] for number in self._done)
    for number, so_far in under_way.items():
      size += min(self._sizes[number], so_far * size // amount) if amount else 0
    return size, amount + sum(under_way.values())


@contextlib.contextmanager
def show_progress(job: Job, stage: str, title: str, unit: str) -> Iterator[None]:
  """Show the progress of a stage while the block runs: `parts` by tokens or `signatures` by
  documents."""
  parts = _Parts(job, stage)
  stop = threading.Event()
  first_size, first_amount = parts.look()
  began = said = time.monotonic()
  bar = tqdm(
    total=parts.total,
    initial=first_size,
    desc=title,
    unit="B",
    unit_scale=True,
    smoothing=0,
    disable=None,
    dynamic_ncols=True,
  )

  def show() -> None:
    nonlocal said
    size, amount = parts.look()
    seconds = max(time.monotonic() - began, 1e-9)
    made = (
      f"{tqdm.format_sizeof(amount)} {unit}, "
      f"{tqdm.format_sizeof((amount - first_amount) / seconds)}/s"
    )
    if not bar.disable:
      bar.n = size
      bar.set_postfix_str(made)
    elif time.monotonic() - said >= _LINE_SECONDS:
      said = time.monotonic()
      rate = (size - first_size) / seconds
      left = (
        f"about {tqdm.format_interval((parts.total - size) / rate)} left"
        if rate
        else ("time left unknown")
      )
      print(
        f"{title}: {100 * size / max(1, parts.total):.0f}% of {tqdm.format_sizeof(parts.total)}B, "
        f"{made}, {left}",
        file=sys.stderr,
        flush=True,
      )

  def watch() -> None:
    while not stop.wait(_LOOK_SECONDS):
      show()

  thread = threading.Thread(target=watch, daemon=True)
  thread.start()
  try:
    yield
  finally:
    stop.set()
    thread.join()
    show()
    bar.close()
