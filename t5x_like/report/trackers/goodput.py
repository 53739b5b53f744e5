"""Record how a run spent its time, over all its starts, in `goodput.json`.

The names are taken from `ml-goodput-measurement`.
"""

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

from t5x_like.errors import one_line
from t5x_like.files.local import LocalPath

FILE = "goodput.json"
_WRITE_SECONDS = 5.0
_BADPUT = (
  "training_prep",  # from the program's start to the restored state
  "program_startup",  # from the restored state to the first metrics, without the step itself
  "data_loading_sync",
  "custom_badput_events.evaluation",
  "unproductive_checkpoint_save_time",  # all other time between steps
  "wasted_progress_from_disruption",  # steps that a later start repeats
  "infrastructure_recovery_from_disruption",  # from the last record of a start to the next start
  "other",
)
# The epoch of the monotonic clock, which cannot be set while the program runs.
_EPOCH = time.time() - time.monotonic()
_log = logging.getLogger("t5x_like.trackers")


@dataclasses.dataclass(frozen=True)
class Tracker:
  """A tracker that adds up the time of a run's first process in `goodput.json`."""

  def open(self, workdir: pathlib.Path, name: str, step: int, config: dict[str, Any]) -> "Goodput":
    file = LocalPath(workdir) / FILE
    return Goodput(file, step, _program_start(), lambda: _EPOCH + time.monotonic())


class Goodput:
  """The seconds of a run, added to the file's seconds of earlier starts.

  Args:
    file: the file to write every 5 seconds, and before a checkpoint commits.
    step: the step from which the run starts or resumes.
    started: when the program was started, in seconds since the epoch.
    clock: returns the seconds since the epoch. If it is behind the last record, because it was set
      back before this start, time continues from the record.
  """

  def __init__(self, file: LocalPath, step: int, started: float, clock: Callable[[], float]):
    self._file = file
    self._step = step
    self._is_first_step = True
    self._read()
    last_step = self._record["max_productive_step"]
    last_time = self._record["at"]
    delay = max(0.0, (last_time or 0.0) - clock())
    self._clock = lambda: clock() + delay
    self._evaluation_seconds = 0.0
    self._last_write = self._clock()
    if last_time is not None:
      started = max(started, last_time)
      if not self._record["in_order"]:
        self._record["disruption_count"] += 1
      self._add("infrastructure_recovery_from_disruption", started - last_time)
      # Steps are not timed one by one: repeated ones lose their share of the productive time.
      repeated_share = max(0, last_step - step) / max(1, last_step)
      lost = self._record["goodput_time"] * repeated_share
      self._record["goodput_time"] -= lost
      self._add("wasted_progress_from_disruption", lost)
    self._record["max_productive_step"] = min(last_step, step)
    self._record["in_order"] = False
    if self._record["began"] is None:
      self._record["began"] = started
    self._last_metrics = self._clock()
    self._add("training_prep", self._last_metrics - started)

  def write(self, step: int, values: dict[str, float]) -> None:
    """Add the seconds since the previous metrics of training steps.

    Args:
      step: the step of the metrics.
      values: metrics by name.
    """
    for name, value in values.items():
      if name.startswith("eval/") and name.endswith("/seconds"):
        self._evaluation_seconds += value
    if "train/seconds_per_step" not in values:
      return
    num_steps = max(1, step - self._step)
    seconds = num_steps * values["train/seconds_per_step"]
    wait_seconds = seconds * values.get("train/data_wait_fraction", 0.0)
    self._record["goodput_time"] += seconds - wait_seconds
    self._add("data_loading_sync", wait_seconds)
    self._add_between_steps(self._clock() - self._last_metrics - seconds)
    self._last_metrics = self._clock()
    self._step = step
    self._is_first_step = False
    self._record["max_productive_step"] = step
    if self._last_metrics - self._last_write > _WRITE_SECONDS:
      self.flush()

  def flush(self) -> None:
    """Write the file; a failure is a warning, and the run continues."""
    self._last_write = self._clock()
    self._record["at"] = self._last_write
    total = self._last_write - self._record["began"]
    goodput_time = self._record["goodput_time"]
    badput = self._record["badput_time"]
    attributed = goodput_time + sum(badput.values()) - badput["other"]
    badput["other"] = max(0.0, total - attributed)
    self._record["total_elapsed_time"] = total
    self._record["goodput"] = min(1.0, goodput_time / max(total, 1e-9))
    try:
      self._file.write_text(json.dumps(_round(self._record), indent=2) + "\n")
    except OSError as error:
      _log.warning("%s: cannot be written: %s", self._file, error.strerror or one_line(error))

  def close(self, outcome: str) -> None:
    """Add the seconds since the last metrics, and write the file.

    Args:
      outcome: how the start ended; after "failed", the seconds count as a disruption.
    """
    seconds = self._clock() - self._last_metrics
    self._record["in_order"] = outcome != "failed"
    if self._record["in_order"]:
      self._add_between_steps(seconds)
    else:  # perhaps after a wait for a lost host
      self._add("infrastructure_recovery_from_disruption", seconds)
    self.flush()

  def _add_between_steps(self, seconds: float) -> None:
    """Attribute the time between two steps to evaluation and to startup or saving."""
    evaluation_seconds = min(self._evaluation_seconds, max(0.0, seconds))
    self._evaluation_seconds = 0.0
    self._add("custom_badput_events.evaluation", evaluation_seconds)
    name = "program_startup" if self._is_first_step else "unproductive_checkpoint_save_time"
    self._add(name, seconds - evaluation_seconds)

  def _add(self, name: str, seconds: float) -> None:
    self._record["badput_time"][name] += max(0.0, seconds)

  def _read(self) -> None:
    """Read the file of earlier starts; begin a new record if it is missing or damaged."""
    self._record = {
      "goodput": 0.0,
      "goodput_time": 0.0,
      "total_elapsed_time": 0.0,
      "max_productive_step": 0,
      "disruption_count": 0,
      "began": None,
      "at": None,
      "in_order": True,  # whether the last start ended without a failure
      "badput_time": dict.fromkeys(_BADPUT, 0.0),
    }
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
      saved = json.loads(self._file.read() or b"null")
      update: dict[str, Any] = {"in_order": bool(saved["in_order"])}
      for key in ("goodput_time", "began", "at"):
        update[key] = float(saved[key])
      for key in ("max_productive_step", "disruption_count"):
        update[key] = int(saved[key])
      badput = {str(name): float(seconds) for name, seconds in saved["badput_time"].items()}
      self._record |= update
      self._record["badput_time"] |= badput


def _round(value: Any) -> Any:
  """Round all floats in a nested dict to milliseconds."""
  if isinstance(value, dict):
    return {key: _round(entry) for key, entry in value.items()}
  return round(value, 3) if isinstance(value, float) else value


def _program_start() -> float:
  """Return when this program was started; on systems other than Linux, the current time."""
  try:
    status = pathlib.Path("/proc/self/stat").read_text()
    ticks = int(status.rpartition(")")[2].split()[19])
    seconds_since_boot = ticks / os.sysconf("SC_CLK_TCK")
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - seconds_since_boot
    return time.time() - age
  except (OSError, ValueError, IndexError, AttributeError):
    return time.time()
