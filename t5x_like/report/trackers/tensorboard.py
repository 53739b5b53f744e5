"""Write TensorBoard's event files; `tensorboard --logdir=DIR` shows all runs below a directory."""

import dataclasses
import os
import pathlib
import time
from typing import Any

_FLUSH_SECONDS = 30  # TensorBoard sees new events about this often


@dataclasses.dataclass(frozen=True)
class Tracker:
  """Writes event files in the workdir.

  When a run resumes, TensorBoard drops the events after the step from which it resumes.
  """

  def open(self, workdir: pathlib.Path, name: str, step: int, config: dict[str, Any]) -> "_Events":
    return _Events(workdir, step)


class _Events:
  """A file of events, which begins by marking the steps after `step` in earlier files as purged.

  `SummaryWriter` is not used: its thread still holds events when its `flush` returns, and a kill
  then loses them.
  """

  def __init__(self, workdir: pathlib.Path, step: int):
    # Imported here because it is slow, and only one process needs it.
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.proto.summary_pb2 import Summary

    def event(step: int, values: dict[str, float]) -> Event:
      summary = Summary(
        value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
      )
      return Event(wall_time=time.time(), step=step, summary=summary)

    self._event = event
    # Two starts within a second must not share a file.
    self._events = EventsWriter(str(workdir / "events"), f".{step}.{os.getpid()}")
    self._events.write_event(Event(step=step + 1, file_version="brain.Event:2"))
    self._events.write_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))
    self.flush()

  def write(self, step: int, values: dict[str, float]) -> None:
    self._events.write_event(self._event(step, values))
    if time.monotonic() - self._flushed > _FLUSH_SECONDS:
      self.flush()

  def flush(self) -> None:
    self._events.flush()
    self._flushed = time.monotonic()

  def close(self, outcome: str) -> None:
    self._events.close()
