"""Phases: a run that begins on other lengths than it ends on, in one workdir (BERT: 90% of the steps at length 128).

A recipe's `task` is what the run ends on, and what evaluations are of throughout. `config.phases` says what differs
before: `{"short": {"until": 900_000, "task": {"length": 128}}}` trains on `config.task` with length 128 up to step
900,000. The phase is a function of the step alone, and so is every batch of it, so a run resumes on either side of a
boundary as it does elsewhere. A step is compiled for one shape; at a boundary it is compiled again, once. The batch
size stays (Devlin et al. 2019 keep 256 sequences), and so do the optimizer's state and the schedule.
"""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from t5x_like import slots
from t5x_like.errors import UserError


@dataclasses.dataclass(frozen=True)
class Phase:
  """`until` is the first step after it; `task` is made by `data.task.build`."""

  name: str
  until: int
  task: Any


def phase(*, until: int, task: dict):
  """The keys of one of `config.phases`: its end, and changes to `config.task`."""


def check(config: ConfigDict) -> None:
  """Refuses phases that are none.

  Raises:
    UserError: naming the key.
  """
  ends = {}
  for name, values in config.phases.items():
    slots.fill(f"config.phases.{name}", values, phase)
    if values.until < 1 or values.until in ends:
      raise UserError(
        f"config.phases.{name}.until: found {values.until}, expected a step of at least 1, another for every phase"
      )
    if "name" in values.task:
      raise UserError(f"config.phases.{name}.task.name: a phase changes arguments of config.task, not which task it is")
    ends[values.until] = name


def build(config: ConfigDict, make_task: Callable[[dict[str, Any]], Any]) -> list[Phase]:
  """The phases in order, the last one without end on `config.task` itself; `make_task` takes a task's arguments."""
  values = {"name": None} | config.task.to_dict()
  early = sorted((slot["until"], name, slot["task"]) for name, slot in config.phases.to_dict().items())
  return [
    *(Phase(name, until, make_task(values | changes)) for until, name, changes in early),
    Phase("main", sys.maxsize, make_task(values)),
  ]
