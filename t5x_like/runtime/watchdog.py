"""End a process that has made no progress for too long, so that a launcher restarts it."""

import faulthandler
import os
import pathlib
import sys
import threading
import time

from t5x_like.errors import EXIT_TRANSIENT

# If even the watchdog's thread cannot run, faulthandler ends the process this much later.
_GRACE_SECONDS = 30.0


class Watchdog:
  """A context manager that ends the process if two calls of `beat` are too far apart.

  It prints the stacks of all threads and exits with the code of a transient error. Without it, a
  process that waits in a collective for a process that has ended or hangs would wait forever.

  Args:
    seconds: the longest time between two beats; 0 disables the watchdog.
    directory: also write the stacks to `stacks-<process>.txt` here; None writes to stderr only.
    process: index of this process.
  """

  def __init__(self, seconds: float, directory: pathlib.Path | None = None, process: int = 0):
    self._seconds = seconds
    self._process = process
    self._path = None if directory is None else directory / f"stacks-{process}.txt"
    self._stop = threading.Event()
    self._last_beat = time.monotonic()
    self._activity = "starting"
    self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

  def beat(self, activity: str) -> None:
    """Record that the last activity has ended, and name the next one."""
    self._last_beat = time.monotonic()
    self._activity = activity

  def __enter__(self) -> "Watchdog":
    if self._seconds:
      self.beat("starting")
      self._restart_timer()
      self._thread.start()
    return self

  def __exit__(self, *_) -> None:
    self._stop.set()
    if self._seconds:
      self._thread.join()
      faulthandler.cancel_dump_traceback_later()

  def _restart_timer(self) -> None:
    """Restart a second timer, which fires even if a thread never releases the GIL."""
    faulthandler.dump_traceback_later(
      self._seconds + _GRACE_SECONDS, exit=True, file=sys.__stderr__
    )

  def _watch(self) -> None:
    """Check the time since the last beat until the context ends."""
    while not self._stop.wait(min(1.0, self._seconds / 4)):
      if time.monotonic() - self._last_beat > self._seconds:
        self._print_stacks_and_exit()
      self._restart_timer()

  def _print_stacks_and_exit(self) -> None:
    print(
      f"transient error: process {self._process}: no progress for {self._seconds:g} s while "
      f"{self._activity}; another process may hang or have ended; the stacks of all threads "
      "follow; run the same command again",
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
