"""Metrics of a run: one gapless `metrics.jsonl`, TensorBoard events, and progress on the console.

A line of `metrics.jsonl` is one flat JSON object: `step` first, then names such as `train/loss` with numbers. JSON has
no infinities, so a value that is not finite is written as null. A line with `missing_from` alone says that the lines of
the steps from there to `step` were lost.
"""

import contextlib
import datetime
import json
import math
import os
import pathlib
import sys
import time
from typing import Any

from t5x_like.errors import UserError, one_line
from t5x_like.files import checked_json, local
from t5x_like.files.local import Local, synced

FILE = "metrics.jsonl"
_FLUSH_SECONDS = 30  # TensorBoard sees new events about this often
_SHOWN = (
  "train/loss",
  "train/accuracy",
  "train/learning_rate",
  "train/gradient_norm",
  "train/seconds_per_step",
  "train/tokens_per_second",
  "train/images_per_second",
  "train/mfu",
)


def read_metrics(workdir) -> list[dict[str, Any]]:
  """The lines of `metrics.jsonl`, in order; [] if there is no file. A partial last line, left by a kill, is ignored.

  A line that is not a JSON object with an integer `step` is skipped, with a warning.
  """
  return [row for row, _ in _rows(pathlib.Path(workdir) / FILE)[0]]


def set_aside(workdir) -> None:
  """Keeps a copy of `metrics.jsonl`, as `metrics.<time>.jsonl`, before lines of it are dropped.

  Raises:
    UserError: it cannot be written.
  """
  path = pathlib.Path(workdir) / FILE
  try:
    content = path.read_bytes()
    name = f"metrics.{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S%f}.jsonl"
    Local(workdir, name).write_bytes(content)
  except FileNotFoundError:
    return
  except OSError as error:
    raise UserError(f"{path}: cannot be copied: {error.strerror or one_line(error)}; free space") from error


class MetricsWriter:
  """Appends metrics; on resume it first drops those after the resumed step.

  Args:
    workdir: a local directory, created if missing.
    resume_step: the step of the checkpoint to resume from, 0 for a new run. Lines of later steps are dropped (with a
      rename, so that a kill loses nothing), and purged from TensorBoard.
    total_steps: the last step, for the progress bar.
    primary: False makes every method do nothing; only one process of a job may write.
    expected: a step up to the resumed one; from it on there must be a line, or lines are gone.

  Attributes:
    missing: the first and the last of the steps up to the resumed one whose lines are gone; None if none are.

  Raises:
    UserError: the directory cannot be written.
  """

  def __init__(self, workdir, *, resume_step: int, total_steps: int, primary: bool = True, expected: int = 0):
    self._file, self.missing = None, None
    if not primary:
      return
    self._path = pathlib.Path(workdir) / FILE
    self._total_steps = total_steps
    self._bar = None
    self._last_line = -math.inf
    with self._disk_errors():
      self._path.parent.mkdir(parents=True, exist_ok=True)
      self._drop_after(resume_step, expected)
      self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 -- closed by close()
      synced(self._path.parent)
      self._open_events(resume_step)
    if sys.stderr.isatty():
      from tqdm import tqdm

      self._bar = tqdm(total=total_steps, initial=resume_step, unit="step", dynamic_ncols=True, file=sys.stderr)

  def write(self, step: int, metrics: dict[str, float]) -> None:
    """Appends one line; evaluations (names `eval/…`) are always shown, training steps about every 10 s.

    Raises:
      UserError: the files cannot be written.
    """
    if self._file is None:
      return
    values = {name: float(value) for name, value in metrics.items()}
    row = {"step": int(step), **{n: v if math.isfinite(v) else None for n, v in values.items()}}
    with self._disk_errors():
      self._file.write(json.dumps(row, allow_nan=False) + "\n")
      self._file.flush()
      self._events.write_event(self._event(int(step), values))
      if time.monotonic() - self._flushed > _FLUSH_SECONDS:
        self._flush_events()
    self._show(int(step), values)

  def flush(self) -> None:
    """Puts everything written so far on disk; call it before a checkpoint of the same step commits.

    Raises:
      UserError: the files cannot be written.
    """
    if self._file is None:
      return
    with self._disk_errors():
      self._file.flush()
      os.fsync(self._file.fileno())
      self._flush_events()

  def close(self) -> None:
    """Flushes and closes; safe to call twice.

    Raises:
      UserError: the files cannot be written.
    """
    if self._file is None:
      return
    try:
      self.flush()
    finally:
      file, self._file = self._file, None
      with self._disk_errors():
        file.close()
        self._events.close()
      if self._bar is not None:
        self._bar.close()

  def _open_events(self, resume_step: int) -> None:
    """Open the file for TensorBoard, and mark the steps after `resume_step` in earlier files as purged.

    `SummaryWriter` is not used: its thread still holds events when its `flush` returns, and a kill then loses them.
    """
    from tensorboardX.event_file_writer import EventsWriter  # slow to import, and only one process needs it
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.proto.summary_pb2 import Summary

    def event(step: int, values: dict[str, float]) -> Event:
      summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
      return Event(wall_time=time.time(), step=step, summary=summary)

    self._event = event
    # Two starts within a second must not share a file.
    self._events = EventsWriter(str(self._path.parent / "events"), f".{resume_step}.{os.getpid()}")
    self._events.write_event(Event(step=resume_step + 1, file_version="brain.Event:2"))
    self._events.write_event(Event(step=resume_step + 1, session_log=SessionLog(status=SessionLog.START)))
    self._flush_events()

  def _flush_events(self) -> None:
    self._events.flush()
    self._flushed = time.monotonic()

  def __enter__(self) -> "MetricsWriter":
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def _drop_after(self, resume_step: int, expected: int) -> None:
    rows, whole = _rows(self._path)
    kept = [(row, line) for row, line in rows if row["step"] <= resume_step]
    raw = [line for _, line in kept]
    trained = [row["step"] for row, _ in kept if "missing_from" in row or any(n.startswith("train/") for n in row)]
    last = max(trained, default=0)
    if last < expected:
      self.missing = last + 1, resume_step
      raw.append(json.dumps({"step": resume_step, "missing_from": last + 1}).encode() + b"\n")
    if not whole:  # nothing of a file that someone may want to mend is lost
      set_aside(self._path.parent)
    if raw or self._path.exists():
      Local(self._path).write_bytes(b"".join(raw))

  def _show(self, step: int, values: dict[str, float]) -> None:
    evaluation = {name: value for name, value in values.items() if name.startswith("eval/")}
    shown = evaluation or {name: values[name] for name in _SHOWN if name in values} or values
    text = "  ".join(f"{name.removeprefix('train/')} {_short(value)}" for name, value in shown.items())
    if self._bar is not None:
      self._bar.update(step - self._bar.n)
      if evaluation:
        self._bar.write(f"step {step}  {text}", file=sys.stderr)
      elif "train/loss" in values:
        self._bar.set_postfix_str(f"loss {_short(values['train/loss'])}", refresh=False)
    elif evaluation or step >= self._total_steps or time.monotonic() - self._last_line >= 10:
      self._last_line = time.monotonic()
      print(f"step {step}/{self._total_steps}  {text}", file=sys.stderr, flush=True)

  @contextlib.contextmanager
  def _disk_errors(self):
    try:
      yield
    except OSError as error:
      raise UserError(
        f"{self._path}: metrics could not be written: {error.strerror or one_line(error)}; free space or fix the "
        "permissions and run the same command again"
      ) from error


def _rows(path: pathlib.Path) -> tuple[list[tuple[dict[str, Any], bytes]], bool]:
  """(row, raw line) of every complete line, and whether none had to be skipped."""

  def check(row: dict[str, Any]) -> None:
    if type(row.get("step")) is not int:
      raise ValueError("not an object with an integer step")

  content = local.content(path) or b""
  complete = content[: content.rfind(b"\n") + 1]
  found = list(checked_json.rows(complete, path, check))
  return found, len(found) == sum(bool(line.strip()) for line in complete.split(b"\n"))


def _short(value: float) -> str:
  return f"{value:,.0f}" if abs(value) >= 10000 else f"{value:.4g}"
