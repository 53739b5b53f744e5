"""Phases: parts of a run with other lengths, batch sizes, rates or corpora, in one workdir.

A recipe's `task` and `batch_size` hold for the last phase and for all evaluations. `config.phases`
lists how earlier phases differ: BERT's `{"short": {"until": 900_000, "task": {"length": 128}}}`
trains on `config.task` with length 128 up to step 900,000; `{"ramp": {"until": 10_000,
"batch_size": 64}}` starts with smaller batches. For annealing, `task` names the last store or the
last rates of a mixture, and a phase names the earlier ones.

The phase is a function of the step alone, and so is each of its batches. A phase continues in each
corpus where the earlier phases stopped, which is counted from the config (`data/consumption.py`).
So a run can resume anywhere, also next to a boundary. A step is compiled for one shape, so it is
compiled again at a boundary. The optimizer's state and the schedule continue.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class Phase:
  """Steps `start` to `until` - 1 of a run.

  Attributes:
    task: a `data.task.Task`.
    config: the run's config, with the batch size of the phase.
  """

  name: str
  start: int
  until: int
  task: Any
  config: ConfigDict


def phase_at(phases: list[Phase], step: int) -> Phase:
  """Return the phase of a step."""
  return next(phase for phase in phases if step < phase.until)


def iterate_batches(
  phases: list[Phase], step: int, rows: Sequence[int] | None = None
) -> Iterator[dict[str, Any]]:
  """Return the batches from a step on, as if its phase had no end; see `loader.train_batches`."""
  from t5x_like.data import consumption, loader  # imports TensorFlow

  current = phase_at(phases, step)
  earlier = []
  for phase in phases:
    if phase.until <= current.start:
      num_steps = phase.until - phase.start
      earlier.append(consumption.Phase(phase.task, phase.config.batch_size, num_steps))
  return loader.train_batches(
    current.task,
    batch_size=current.config.batch_size,
    seed=current.config.seed,
    start_step=step,
    rows=rows,
    earlier=earlier,
  )


def check_past_phases(saved: dict[str, Any], config: ConfigDict, step: int, workdir) -> None:
  """Refuse a change of the phases up to a step; later ones may change.

  Args:
    saved: the config of the steps before `step`.
  """
  saved_phases = _past_phases(ConfigDict(saved), step)
  for before, now in itertools.zip_longest(saved_phases, _past_phases(config, step)):
    if before != now:
      raise UserError(
        f"{workdir}: its steps up to {step} were made with {_describe_phase(before)}, found "
        f"{_describe_phase(now)}: set config.phases as it was for these steps, or use a new "
        "--workdir"
      )


def _past_phases(config: ConfigDict, step: int) -> list[tuple[str, int, int]]:
  """Return name, end and batch size of each phase that begins before a step."""
  past_phases = []
  start = 0
  for name, until, _, batch_size in config_lib.phases_in_order(config):
    if start < step or not past_phases:
      past_phases.append((name, min(until, step), batch_size))
    start = min(until, step)
  return past_phases


def _describe_phase(phase: tuple[str, int, int] | None) -> str:
  if phase is None:
    return "no such phase"
  name, until, batch_size = phase
  return f"phase {name} up to step {until} at batch size {batch_size}"
