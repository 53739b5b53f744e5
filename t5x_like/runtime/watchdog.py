"""End a process in which nothing has happened for too long, so that a launcher restarts it."""

import faulthandler
import os
import pathlib
import sys
import threading
import time

from t5x_like.errors import EXIT_TRANSIENT

_GRACE_SECONDS = 30.0  # after which a process that cannot even run Python is ended


class Watchdog:
  """Prints the stacks of all threads and exits as transient when no beat came in time.

  It is a context manager.

  A process that hangs in a collective, because another is gone or stopped, does not end by itself.

  Args:
    seconds: the longest time between two beats; 0 for no watchdog.
    directory: where `stacks-<process>.txt` is written, besides stderr; None for stderr alone.
    process: the number of this process.
  """

  def __init__(self, seconds: float, directory: pathlib.Path | None = None, process: int = 0):
    self._seconds = seconds
    self._process = process
    self._path = None if directory is None else directory / f"stacks-{process}.txt"
    self._ended = threading.Event()
    self._last = time.monotonic()
    self._doing = "starting"
    self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

  def beat(self, doing: str) -> None:
    """Note that something has ended, and name the next activity."""
    self._last = time.monotonic()
    self._doing = doing

  def __enter__(self) -> "Watchdog":
    if self._seconds:
      self.beat("starting")
      self._arm()
      self._thread.start()
    return self

  def __exit__(self, *_) -> None:
    self._ended.set()
    if self._seconds:
      self._thread.join()
      faulthandler.cancel_dump_traceback_later()

  def _arm(self) -> None:
    """Arm a second timer, which works even if code never gives up the interpreter's lock."""
    faulthandler.dump_traceback_later(
      self._seconds + _GRACE_SECONDS, exit=True, file=sys.__stderr__
    )

  def _watch(self) -> None:
    while not self._ended.wait(min(1.0, self._seconds / 4)):
      if time.monotonic() - self._last > self._seconds:
        self._bark()
      self._arm()

  def _bark(self) -> None:
    print(
      f"transient error: process {self._process}: nothing has ended for {self._seconds:g} s while "
      f"{self._doing}; another process may hang or be gone; the stacks of all threads follow; run "
      "the same command again",
      file=sys.stderr,
      flush=True,
    )
    try:
      faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
      if self._path is not None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "w", encoding="utf-8") as file:
          faulthandler.dump_traceback(file, all_threads=True)
    finally:
      os._exit(EXIT_TRANSIENT)
