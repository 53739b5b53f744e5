"""Trackers receive the metrics of a run in addition to `metrics.jsonl`; each is a module.

  config.trackers = {"tensorboard": {}, "mlflow": {"uri": "http://host:5000"}}

A module defines `Tracker`, a frozen dataclass of the arguments in the recipe. Its constructor
checks the requirements, such as a library, before data are opened; its `open` starts to write. The
record of a run is still `metrics.jsonl`: resuming and `report.html` read only this file, and a
tracker that lacks lines receives them from it.
"""

import importlib.util
import pathlib
from typing import Any, Literal, Protocol

from t5x_like.errors import UserError

Outcome = Literal["finished", "paused", "failed"]


class OpenTracker(Protocol):
  """An open tracker.

  An `OSError` of a local tracker ends the run, as for `metrics.jsonl`; a remote one raises none.
  """

  def write(self, step: int, values: dict[str, float]) -> None:
    """Write the values of a step, whose line is already in `metrics.jsonl`."""

  def flush(self) -> None:
    """Write all lines to disk, if the tracker is local; a checkpoint commits after it."""

  def close(self, outcome: Outcome) -> None:
    """Finish; a `paused` run resumes in another start, or at once from an earlier step."""


class Tracker(Protocol):
  """The arguments of a tracker, checked."""

  def open(
    self, workdir: pathlib.Path, name: str, step: int, config: dict[str, Any]
  ) -> OpenTracker:
    """Start to write, in the first process only.

    Args:
      workdir: the run's local directory, or the local copy of its address.
      name: the last part of the workdir's address.
      step: the step from which the run starts or resumes; `metrics.jsonl` has no later line.
      config: the content of `config.json`.
    """


def require_library(library: str, extra: str) -> None:
  """Check that a library is installed, without importing it.

  Raises:
    UserError: it is not; the message names the extra to install.
  """
  if importlib.util.find_spec(library) is None:
    raise UserError(
      f"config.trackers: {library} is not installed; install it with pip install "
      f"'t5x-like[{extra}]', or leave the tracker out"
    )
