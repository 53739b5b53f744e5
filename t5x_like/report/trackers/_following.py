"""A thread that sends `metrics.jsonl` to a tracker on a network, so that a slow or absent one never
stops a run.

The thread reads the file, not a queue. After a failure it goes on from the first line that was not
sent, and after a kill the next start begins with the first line and sends those that the tracker
does not have.
"""

import json
import logging
import pathlib
import threading
from collections.abc import Callable
from typing import Protocol

from t5x_like.errors import one_line
from t5x_like.files.paths import as_path
from t5x_like.report.writer import FILE

_log = logging.getLogger("t5x_like.trackers")
_CHUNK = 2**20  # bytes read at a time
_RETRY_SECONDS = 60.0
_CLOSE_SECONDS = 60.0
_IDS = "trackers.json"


class Connection(Protocol):
  """A remote run, new or continued."""

  def send(self, rows: list[tuple[int, dict[str, float]]]) -> None:
    """Log the rows that the remote run does not have; may be called again with the same rows after
    it raised."""

  def close(self, outcome: str) -> None:
    """Finish the remote run, or leave it to be continued."""


class Following:
  """An open tracker that sends the lines of `metrics.jsonl` from a thread of its own.

  Args:
    name: the tracker's, for messages.
    connect: opens the remote run; called in the thread, and again after it failed.
  """

  def __init__(self, name: str, workdir: pathlib.Path, connect: Callable[[], Connection]):
    self._name = name
    self._path = workdir / FILE
    self._connect = connect
    self._connection: Connection | None = None
    self._offset = 0
    self._told = False
    self._changed = threading.Condition()
    self._closing = False
    self._outcome = ""
    self._woken = True
    self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
    self._thread.start()

  def write(self, step: int, values: dict[str, float]) -> None:
    self._wake()

  def flush(self) -> None:
    pass

  def close(self, outcome: str) -> None:
    with self._changed:
      self._closing = True
      self._outcome = outcome
    self._wake()
    self._thread.join(_CLOSE_SECONDS)
    if self._thread.is_alive():
      self._tell(f"still sending after {_CLOSE_SECONDS:.0f} s, and left behind")

  def _wake(self) -> None:
    with self._changed:
      self._woken = True
      self._changed.notify()

  def _run(self) -> None:
    while True:
      with self._changed:
        self._changed.wait_for(lambda: self._woken)
        self._woken = False
        closing = self._closing
      try:
        self._connection = self._connection or self._connect()
        while self._send():
          pass
        if closing:
          self._connection.close(self._outcome)
      except Exception as error:  # any error of a library or a network
        self._tell(f"{type(error).__name__}: {one_line(error)[:300]}")
        if not closing:
          with self._changed:
            self._changed.wait_for(lambda: self._closing, _RETRY_SECONDS)
            self._woken = True
      if closing:
        return

  def _send(self) -> bool:
    """Send the next lines of the file; return whether there may be more."""
    with open(self._path, "rb") as file:
      file.seek(self._offset)
      chunk = file.read(_CHUNK)
    chunk = chunk[: chunk.rfind(b"\n") + 1]
    if chunk:
      self._connection.send(_metrics(chunk))
      self._offset += len(chunk)
    return bool(chunk)

  def _tell(self, why: str) -> None:
    """Tell of a failure, once."""
    if not self._told:
      self._told = True
      _log.warning(
        "config.trackers.%s: %s; the run goes on, %s has every line, and the next start sends the "
        "missing ones",
        self._name,
        why,
        FILE,
      )


def _metrics(lines: bytes) -> list[tuple[int, dict[str, float]]]:
  """Return the step and the finite values of each line; marks of gaps are left out."""
  rows = [json.loads(line) for line in lines.splitlines()]
  return [
    (row.pop("step"), {name: value for name, value in row.items() if value is not None})
    for row in rows
    if "missing_from" not in row
  ]


def kept_id(workdir: pathlib.Path, name: str) -> str | None:
  """Return the id of the remote run that this workdir's run is known by; None before the first
  start."""
  content = (as_path(workdir) / _IDS).read()
  return json.loads(content).get(name) if content else None


def keep_id(workdir: pathlib.Path, name: str, run_id: str) -> None:
  """Record the id of a remote run in the workdir."""
  file = as_path(workdir) / _IDS
  with _KEEPING:
    kept = json.loads(file.read() or "{}")
    file.write_text(json.dumps(kept | {name: run_id}, indent=2) + "\n")


_KEEPING = threading.Lock()  # two trackers connect at the same time
