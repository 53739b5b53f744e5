"""Where the time of a run went, over all its starts, by the names of `ml-goodput-measurement`:
`goodput.json`."""

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
_EVERY_SECONDS = 5.0
_BADPUT = (
  "training_prep",  # from the program's start to the restored state
  "program_startup",  # from there to the first step's metrics, without the step: compiling
  "data_loading_sync",
  "custom_badput_events.evaluation",
  # and other work of the loop between steps that is no evaluation
  "unproductive_checkpoint_save_time",
  "wasted_progress_from_disruption",  # steps that a later start takes again
  "infrastructure_recovery_from_disruption",  # from the last sign of a start to the next one's
  "other",
)
_EPOCH = time.time() - time.monotonic()  # of a clock that nobody sets while the program runs
_log = logging.getLogger("t5x_like.trackers")


@dataclasses.dataclass(frozen=True)
class Tracker:
  """Adds up seconds of the first process in `goodput.json` of the workdir."""

  def open(self, workdir: pathlib.Path, name: str, step: int, config: dict[str, Any]) -> "Goodput":
    return Goodput(
      LocalPath(workdir) / FILE, step, _program_start(), lambda: _EPOCH + time.monotonic()
    )


class Goodput:
  """The seconds of a run, with those of earlier starts in the file.

  Args:
    file: written every 5 seconds, and before a checkpoint commits.
    step: the step that the run goes on from.
    started: when the program was started, in seconds since the epoch.
    clock: seconds since the epoch; where it was put back before this start, time goes on from the
      last sign.
  """

  def __init__(self, file: LocalPath, step: int, started: float, clock: Callable[[], float]):
    self._file = file
    self._step = step
    self._first = True
    self._read()
    reached = self._found["max_productive_step"]
    at = self._found["at"]
    behind = max(0.0, (at or 0.0) - clock())
    self._clock = lambda: clock() + behind
    self._evaluated, self._written = 0.0, self._clock()
    if at is not None:
      started = max(started, at)
      self._found["disruption_count"] += not self._found["in_order"]
      self._add("infrastructure_recovery_from_disruption", started - at)
      lost = self._found["goodput_time"] * max(0, reached - step) / max(1, reached)
      self._found["goodput_time"] -= lost
      self._add("wasted_progress_from_disruption", lost)
    self._found |= {"max_productive_step": min(reached, step), "in_order": False}
    self._found["began"] = started if self._found["began"] is None else self._found["began"]
    self._last = self._clock()
    self._add("training_prep", self._last - started)

  def write(self, step: int, values: dict[str, float]) -> None:
    self._evaluated += sum(
      value
      for name, value in values.items()
      if name.startswith("eval/") and name.endswith("/seconds")
    )
    if "train/seconds_per_step" not in values:
      return
    # of the steps since the last line
    seconds = values["train/seconds_per_step"] * max(1, step - self._step)
    waited = seconds * values.get("train/data_wait_fraction", 0.0)
    self._found["goodput_time"] += seconds - waited
    self._add("data_loading_sync", waited)
    self._between(self._clock() - self._last - seconds)
    self._last = self._clock()
    self._step = step
    self._first = False
    self._found["max_productive_step"] = step
    if self._last - self._written > _EVERY_SECONDS:
      self.flush()

  def flush(self) -> None:
    """Write the file; a run goes on without it."""
    self._found["at"] = self._written = self._clock()
    badput = self._found["badput_time"]
    total = self._written - self._found["began"]
    known = (
      sum(value for name, value in badput.items() if name != "other") + self._found["goodput_time"]
    )
    badput["other"] = max(0.0, total - known)
    self._found |= {
      "total_elapsed_time": total,
      "goodput": min(1.0, self._found["goodput_time"] / max(total, 1e-9)),
    }
    try:
      self._file.write_text(json.dumps(_rounded(self._found), indent=2) + "\n")
    except OSError as error:
      _log.warning("%s: cannot be written: %s", self._file, error.strerror or one_line(error))

  def close(self, outcome: str) -> None:
    since = self._clock() - self._last
    self._found["in_order"] = outcome != "failed"
    if self._found["in_order"]:
      self._between(since)
    else:  # it fails, perhaps after a wait for a host that is gone
      self._add("infrastructure_recovery_from_disruption", since)
    self.flush()

  def _between(self, seconds: float) -> None:
    """Count the time between steps."""
    evaluated = min(self._evaluated, max(0.0, seconds))
    self._evaluated = 0.0
    self._add("custom_badput_events.evaluation", evaluated)
    self._add(
      "program_startup" if self._first else "unproductive_checkpoint_save_time", seconds - evaluated
    )

  def _add(self, name: str, seconds: float) -> None:
    badput = self._found["badput_time"]
    badput[name] = badput.get(name, 0.0) + max(0.0, seconds)

  def _read(self) -> None:
    """Take up the file of earlier starts, or begin anew if it is missing or damaged."""
    self._found = {
      "goodput": 0.0,
      "goodput_time": 0.0,
      "total_elapsed_time": 0.0,
      "max_productive_step": 0,
    }
    self._found |= {"disruption_count": 0, "began": None, "at": None, "in_order": True}
    self._found["badput_time"] = dict.fromkeys(_BADPUT, 0.0)
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
      found = json.loads(self._file.read() or b"null")
      badput = {str(name): float(value) for name, value in found["badput_time"].items()}
      numbers = {key: float(found[key]) for key in ("goodput_time", "began", "at")}
      whole = {key: int(found[key]) for key in ("max_productive_step", "disruption_count")}
      self._found |= numbers | whole | {"in_order": bool(found["in_order"])}
      self._found["badput_time"] |= badput


def _rounded(value: Any) -> Any:
  if isinstance(value, dict):
    return {key: _rounded(one) for key, one in value.items()}
  return round(value, 3) if isinstance(value, float) else value


def _program_start() -> float:
  """Return when this program was started; on systems other than Linux, the present."""
  try:
    ticks = int(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - (
      time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    )
  except (OSError, ValueError, IndexError, AttributeError):
    return time.time()
