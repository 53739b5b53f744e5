"""Send `metrics.jsonl` to a remote tracker from a thread, so that a network never stops a run.

The thread reads the file, not a queue. After a failure it resumes at the first line that was not
sent. After a kill, the next start reads the file from its first line and sends the lines that the
tracker lacks.
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
_IDS_LOCK = threading.Lock()  # two trackers may connect at the same time


class Connection(Protocol):
  """A remote run, new or continued."""

  def send(self, rows: list[tuple[int, dict[str, float]]]) -> None:
    """Log the rows that the remote run lacks; after an error, it is called with them again."""

  def close(self, outcome: str) -> None:
    """Finish the remote run, or leave it to be continued."""


class Following:
  """An open tracker that sends the lines of `metrics.jsonl` from a separate thread.

  Args:
    name: the tracker's name, for warnings.
    connect: opens the remote run; called in the thread, again after each failure.
  """

  def __init__(self, name: str, workdir: pathlib.Path, connect: Callable[[], Connection]):
    self._name = name
    self._path = workdir / FILE
    self._connect = connect
    self._connection: Connection | None = None
    self._offset = 0
    self._has_warned = False
    self._changed = threading.Condition()
    self._closing = False
    self._outcome = ""
    self._has_lines = True
    self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
    self._thread.start()

  def write(self, step: int, values: dict[str, float]) -> None:
    self._wake()

  def flush(self) -> None:
    pass

  def close(self, outcome: str) -> None:
    """Send the remaining lines and close the connection, within `_CLOSE_SECONDS`."""
    with self._changed:
      self._closing = True
      self._outcome = outcome
    self._wake()
    self._thread.join(_CLOSE_SECONDS)
    if self._thread.is_alive():
      self._warn(f"still sending after {_CLOSE_SECONDS:.0f} s, and abandoned")

  def _wake(self) -> None:
    with self._changed:
      self._has_lines = True
      self._changed.notify()

  def _run(self) -> None:
    """Send lines until the run closes; after an error, connect again later."""
    while True:
      with self._changed:
        self._changed.wait_for(lambda: self._has_lines)
        self._has_lines = False
        closing = self._closing
      try:
        self._connection = self._connection or self._connect()
        while self._send():
          pass
        if closing:
          self._connection.close(self._outcome)
      except Exception as error:  # any error of a library or a network
        self._warn(f"{type(error).__name__}: {one_line(error)[:300]}")
        if not closing:
          with self._changed:
            self._changed.wait_for(lambda: self._closing, _RETRY_SECONDS)
            self._has_lines = True
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

  def _warn(self, reason: str) -> None:
    """Warn of the first failure."""
    if not self._has_warned:
      self._has_warned = True
      _log.warning(
        "config.trackers.%s: %s; the run continues, %s has every line, and the next start sends "
        "the missing ones",
        self._name,
        reason,
        FILE,
      )


def _metrics(lines: bytes) -> list[tuple[int, dict[str, float]]]:
  """Return the step and the finite values of each line; marks of gaps are left out."""
  metrics = []
  for line in lines.splitlines():
    row = json.loads(line)
    if "missing_from" in row:
      continue
    step = row.pop("step")
    metrics.append((step, {name: value for name, value in row.items() if value is not None}))
  return metrics


def read_id(workdir: pathlib.Path, name: str) -> str | None:
  """Return the id of this workdir's remote run; None before the first start."""
  content = (as_path(workdir) / _IDS).read()
  return json.loads(content).get(name) if content else None


def write_id(workdir: pathlib.Path, name: str, run_id: str) -> None:
  """Record the id of a remote run in the workdir."""
  file = as_path(workdir) / _IDS
  with _IDS_LOCK:
    ids = json.loads(file.read() or "{}")
    file.write_text(json.dumps(ids | {name: run_id}, indent=2) + "\n")
