"""Write a run's metrics to `metrics.jsonl`, without gaps over restarts, and to its trackers.

A line of `metrics.jsonl` is one flat JSON object: `step` first, then names such as `train/loss`
with numbers. JSON has no infinities, so a value that is not finite is written as null. A line that
has only `missing_from` besides `step` marks lost lines, of the steps from there to `step`.
"""

import contextlib
import datetime
import json
import logging
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from t5x_like.errors import UserError, one_line
from t5x_like.files import checked_json, local
from t5x_like.files.local import LocalPath, sync

FILE = "metrics.jsonl"
_log = logging.getLogger("t5x_like.metrics")


def read_metrics(workdir) -> list[dict[str, Any]]:
  """Return the lines of `metrics.jsonl`, in order; [] if there is no file.

  A partial last line, left by a kill, is ignored. A line that is no JSON object with an integer
  `step` is skipped, with a warning.
  """
  return [row for row, _ in _rows(pathlib.Path(workdir) / FILE)[0]]


def set_aside(workdir) -> None:
  """Copy `metrics.jsonl` to `metrics.<time>.jsonl` before lines of it are dropped.

  Raises:
    UserError: the copy cannot be written.
  """
  path = pathlib.Path(workdir) / FILE
  try:
    content = path.read_bytes()
    name = f"metrics.{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S%f}.jsonl"
    LocalPath(workdir, name).write_bytes(content)
  except FileNotFoundError:
    return
  except OSError as error:
    raise UserError(
      f"{path}: cannot be copied: {error.strerror or one_line(error)}; free space"
    ) from error


class MetricsWriter(contextlib.AbstractContextManager):
  """Append metrics to `metrics.jsonl`; on resume, drop the lines after the resumed step first.

  Args:
    workdir: a local directory, created if missing.
    resume_step: the step of the checkpoint to resume from, 0 for a new run. Lines of later steps
      are dropped (with a rename, so that a kill loses nothing).
    primary: False makes every method do nothing; only one process of a job may write.
    expected: the step up to which training lines must exist; if the last is earlier, lines are
      lost.
    trackers: opens the trackers, once the file is ready for them; see `report/trackers`.
    check: called if the file was removed or replaced; raises if another run has taken the workdir.

  Attributes:
    missing: the first and last step whose lines are lost, up to the resumed step; None for none.

  Raises:
    UserError: the directory cannot be written.
  """

  def __init__(
    self,
    workdir,
    *,
    resume_step: int,
    primary: bool = True,
    expected: int = 0,
    trackers: Callable[[], Sequence] = tuple,
    check: Callable[[], None] = lambda: None,
  ):
    self._check = check
    self._file = None
    self.missing = None
    self._trackers = ()
    self._last_step = 0  # the last step with a line in the file
    self._size = 0  # the size of the file after the last write
    self._last_line = b""  # the last line that was written
    if not primary:
      return
    self._path = pathlib.Path(workdir) / FILE
    with self._disk_errors():
      self._path.parent.mkdir(parents=True, exist_ok=True)
      self._drop_after(resume_step, expected)
      self._open()
      self._trackers = trackers()

  def write(self, step: int, metrics: dict[str, float]) -> None:
    """Append one line and hand it to the trackers.

    Raises:
      UserError: the files cannot be written.
    """
    if self._file is None:
      return
    values = {name: float(value) for name, value in metrics.items()}
    row = {"step": int(step), **checked_json.replace_nonfinite(values)}
    with self._disk_errors():
      self._check_file()
      self._append(row)
      self._last_step = int(step)
      for tracker in self._trackers:
        tracker.write(int(step), values)

  def flush(self) -> None:
    """Write everything to disk, before a checkpoint of the same step commits.

    Raises:
      UserError: as in `write`.
    """
    if self._file is None:
      return
    with self._disk_errors():
      self._check_file()
      self._file.flush()
      os.fsync(self._file.fileno())
      for tracker in self._trackers:
        tracker.flush()

  def close(self, outcome: str = "finished") -> None:
    """Flush and close; a second call does nothing.

    Args:
      outcome: how the run ended, see `trackers.Outcome`.

    Raises:
      UserError: as in `write`.
    """
    if self._file is None:
      return
    try:
      self.flush()
    finally:
      file = self._file
      self._file = None
      with self._disk_errors():
        file.close()
        for tracker in self._trackers:
          tracker.close(outcome)

  def __exit__(self, *_) -> None:
    self.close()

  def _open(self) -> None:
    self._file = open(self._path, "a", encoding="utf-8")
    self._size = os.fstat(self._file.fileno()).st_size
    self._last_line = b""
    sync(self._path.parent)

  def _append(self, row: dict[str, Any]) -> None:
    line = json.dumps(row, allow_nan=False) + "\n"
    self._last_line = line.encode()
    self._file.write(line)
    self._file.flush()
    self._size = os.fstat(self._file.fileno()).st_size

  def _check_file(self) -> None:
    """If another program has changed the file, continue in the file that is now at the path.

    Lines that were lost by the change are marked in the file and reported.
    """
    change = self._file_change()
    if change is None:
      return
    self._check()
    self._file.close()
    self._path.parent.mkdir(parents=True, exist_ok=True)
    content = local.read_content(self._path) or b""
    if content and not content.endswith(b"\n"):
      if change == "overwritten":
        set_aside(self._path.parent)
      LocalPath(self._path).write_bytes(content[: content.rfind(b"\n") + 1])
    self._open()
    present = max((row["step"] for row in read_metrics(self._path.parent)), default=0)
    consequence = "no line is lost"
    if present < self._last_step:
      self._append({"step": self._last_step, "missing_from": present + 1})
      consequence = (
        f"the lines of steps {present + 1} to {self._last_step} are lost; the report "
        "leaves a gap there"
      )
    _log.warning(
      "%s: was %s while the run writes to it; the run continues in it, and %s",
      self._path,
      change,
      consequence,
    )

  def _file_change(self) -> str | None:
    """Return how the open file and the one at the path differ; None if they do not."""
    change = local.replacement(self._path, self._file)
    if change:
      return change
    if os.fstat(self._file.fileno()).st_size < self._size:
      return "cut"
    with open(self._path, "rb") as file:
      file.seek(self._size - len(self._last_line))
      end = file.read()
    is_intact = end.startswith(self._last_line) and (not end or end.endswith(b"\n"))
    return None if is_intact else "overwritten"

  def _drop_after(self, resume_step: int, expected: int) -> None:
    """Drop the lines after a step and repeated lines; mark lines that are lost before it."""
    rows, is_intact = _rows(self._path)
    lines = []
    last_training_step = 0
    for row, line in rows:
      step = row["step"]
      if step > resume_step:
        continue
      lines.append(line)
      self._last_step = max(self._last_step, step)
      if "missing_from" in row or any(name.startswith("train/") for name in row):
        last_training_step = max(last_training_step, step)
    unique_lines = list(dict.fromkeys(lines))
    num_repeated = len(lines) - len(unique_lines)
    if num_repeated:
      _log.warning(
        "%s: dropped %d repeated lines, as if the file had been appended to itself",
        self._path,
        num_repeated,
      )
    if last_training_step < expected:
      self.missing = (last_training_step + 1, resume_step)
      mark = {"step": resume_step, "missing_from": last_training_step + 1}
      unique_lines.append(json.dumps(mark).encode() + b"\n")
    if num_repeated or not is_intact:  # the user may want to repair the old file
      set_aside(self._path.parent)
    if unique_lines or self._path.exists():
      LocalPath(self._path).write_bytes(b"".join(unique_lines))

  @contextlib.contextmanager
  def _disk_errors(self):
    try:
      yield
    except OSError as error:
      raise UserError(
        f"{self._path}: metrics could not be written: {error.strerror or one_line(error)}; free "
        "space or fix the permissions and run the same command again"
      ) from error


def _rows(path: pathlib.Path) -> tuple[list[tuple[dict[str, Any], bytes]], bool]:
  """Return (row, raw line) of every complete line, and whether no line had to be skipped."""

  def check(row: dict[str, Any]) -> None:
    if type(row.get("step")) is not int:
      raise ValueError("not an object with an integer step")

  content = local.read_content(path) or b""
  complete = content[: content.rfind(b"\n") + 1]
  rows = list(checked_json.read_rows(complete, path, check))
  num_lines = sum(bool(line.strip()) for line in complete.split(b"\n"))
  return rows, len(rows) == num_lines
