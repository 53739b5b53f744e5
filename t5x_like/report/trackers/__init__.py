"""Trackers: where the metrics of a run go beside `metrics.jsonl`, one module each, found by its
name.

  config.trackers = {"tensorboard": {}, "wandb": {"project": "mine"}, "mlflow": {"uri":
  "http://host:5000"}}

A module defines `Tracker`, a frozen dataclass of the arguments in the recipe. Making one checks
what a run needs, such as a library, before data are opened; its `open` begins to write.
`metrics.jsonl` stays the record of a run: resuming and `report.html` read it alone, and a tracker
that is behind is filled up from it.
"""

import importlib.util
import pathlib
from typing import Any, Literal, Protocol

from t5x_like.errors import UserError

Outcome = Literal["finished", "paused", "failed"]


class Opened(Protocol):
  """An open tracker. Its `OSError`s end a run, as those of `metrics.jsonl` do; a remote one raises
  none."""

  def write(self, step: int, values: dict[str, float]) -> None:
    """Take the line of a step, which is in `metrics.jsonl` already."""

  def flush(self) -> None:
    """Put the lines on disk, if that is where they go; a checkpoint commits after it."""

  def close(self, outcome: Outcome) -> None:
    """Finish; a run that is `paused` goes on in another start, or at once from an earlier step."""


class Tracker(Protocol):
  """The arguments of a tracker, checked."""

  def open(self, workdir: pathlib.Path, name: str, step: int, config: dict[str, Any]) -> Opened:
    """Begin to write, in the first process only.

    Args:
      workdir: a local directory that stands for the run's.
      name: the last part of the workdir's address.
      step: the step that the run goes on from; `metrics.jsonl` has no line after it.
      config: the content of `config.json`.
    """


def need(library: str, extra: str) -> None:
  """Raise UserError, naming the extra, unless a library is installed; nothing is imported."""
  if importlib.util.find_spec(library) is None:
    raise UserError(
      f"config.trackers: {library} is not installed; install it with pip install "
      f"'t5x-like[{extra}]', or leave the tracker out"
    )
