"""Phases: stretches of a run on other lengths, batch sizes, rates or corpora than it ends on, in one workdir.

A recipe's `task` and `batch_size` are what the run ends on, and what evaluations are of throughout. `config.phases`
says what differs before: BERT's `{"short": {"until": 900_000, "task": {"length": 128}}}` trains on `config.task` with
length 128 up to step 900,000; `{"ramp": {"until": 10_000, "batch_size": 64}}` starts with smaller batches; a run that
ends on another store or other rates of a mixture, as for annealing, says in a phase what they were before.

The phase is a function of the step alone, and so is every batch of it: what a phase draws begins where the earlier
ones left each corpus, which is counted from the config (`data/consumption.py`). So a run resumes on either side of a
boundary as it does elsewhere. A step is compiled for one shape; at a boundary it is compiled again, once. The
optimizer's state and the schedule go on.
"""

import copy
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like import slots
from t5x_like.errors import UserError
from t5x_like.files import file_names
from t5x_like.slots import Positive


@dataclasses.dataclass(frozen=True, eq=False)
class Phase:
  """Steps `start` to `until` - 1 of a run.

  Attributes:
    task: made by `data.task.build`.
    config: the run's, with the batch size of the phase.
  """

  name: str
  start: int
  until: int
  task: Any
  config: ConfigDict


def phase(*, until: Positive, task: dict = {}, batch_size: Positive | None = None):  # noqa: B006
  """The keys of one of `config.phases`: the step it ends before, changes to `config.task`, and its batch size."""


def check(config: ConfigDict) -> None:
  """Refuses phases that cannot be.

  Raises:
    UserError: naming the key.
  """
  ends = set()
  for name, values in _filled(config).items():
    file_names.check("config.phases", name)
    if values["until"] in ends:
      raise UserError(f"config.phases.{name}.until: found {values['until']} twice, expected another for every phase")
    if "name" in values["task"]:
      raise UserError(f"config.phases.{name}.task.name: a phase changes arguments of config.task, not which task it is")
    ends.add(values["until"])


def build(config: ConfigDict, make_task: Callable[[dict[str, Any]], Any]) -> list[Phase]:
  """The phases in order, the last one without end on `config.task` itself; `make_task` takes a task's arguments."""
  built, start = [], 0
  for name, until, changes, batch_size in _in_order(config):
    own = copy.deepcopy(config)
    own.batch_size = batch_size
    task = make_task({"name": None} | config_lib.changed(config.task.to_dict(), changes))
    built.append(Phase(name, start, until, task, own))
    start = until
  return built


def at(phases: list[Phase], step: int) -> Phase:
  """The phase that a step is in."""
  return next(phase for phase in phases if step < phase.until)


def batches(phases: list[Phase], step: int, rows: Sequence[int] | None = None) -> Iterator[dict[str, Any]]:
  """The batches from a step on, to the end of its phase and on as if that had none; see `loader.train_batches`."""
  from t5x_like.data import consumption, loader  # tensorflow: only where data is read

  now = at(phases, step)
  before = [one for one in phases if one.until <= now.start]
  return loader.train_batches(
    now.task,
    batch_size=now.config.batch_size,
    seed=now.config.seed,
    start_step=step,
    rows=rows,
    earlier=[consumption.Phase(one.task, one.config.batch_size, one.until - one.start) for one in before],
  )


def check_past(saved: dict[str, Any], now: ConfigDict, step: int, workdir) -> None:
  """Refuses phases other than those that a run has made its steps with so far; later ones may change.

  Args:
    saved: the config that the steps before `step` were made with.

  Raises:
    UserError: naming the first stretch of steps that differs.
  """
  for then, here in itertools.zip_longest(_past(ConfigDict(saved), step), _past(now, step)):
    if then != here:
      raise UserError(
        f"{workdir}: its steps up to {step} were made with {_told(then)}, found {_told(here)}: set config.phases as it"
        " was for these steps, or use a new --workdir"
      )


def _past(config: ConfigDict, step: int) -> list[tuple[str, int, int]]:
  ended = [(name, min(until, step), size) for name, until, _, size in _in_order(config)]
  return [one for number, one in enumerate(ended) if number == 0 or ended[number - 1][1] < step]


def _told(phase: tuple[str, int, int] | None) -> str:
  return "no such phase" if phase is None else f"phase {phase[0]} up to step {phase[1]} at batch size {phase[2]}"


def _in_order(config: ConfigDict) -> list[tuple[str, int, dict[str, Any], int]]:
  """(name, until, changes to the task, batch size) of the phases and of `main`, which comes last."""
  early = sorted((values["until"], name, values) for name, values in _filled(config).items())
  return [
    *((name, until, values["task"], values["batch_size"] or config.batch_size) for until, name, values in early),
    ("main", sys.maxsize, {}, config.batch_size),
  ]


def _filled(config: ConfigDict) -> dict[str, dict[str, Any]]:
  return {name: slots.fill(f"config.phases.{name}", values, phase) for name, values in config.phases.to_dict().items()}
