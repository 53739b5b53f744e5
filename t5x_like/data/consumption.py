"""Consumption: where in every corpus a phase of a run begins, counted from what the earlier phases drew.

What a run reads is a few *streams*, one for each part of a mixture (a single task is one without a label) and each
numbering of examples that it had. The positions of a stream count its examples epoch after epoch: position g is place
g % size of the permutation of epoch g // size. A phase of n examples takes the next n positions of a task, and of a
mixture those that stand in the first n places of its schedule: whole periods by multiplication, the rest of one period
by a table. Nothing else is needed to go on in a phase with another batch size, other rates or other parts: no position
is taken twice, and a part that rests goes on later where it stopped.

A mixture that stops inside a period has taken some draws of that period and not others, as the period is shuffled.
Those passed over come first in the next phase that draws from the stream, so nothing is skipped either.

Worked example: parts a and b at counts (2, 1) for a phase of 4 examples, whose places hold, before the shuffle of each
period, (a 0, b 0, a 1), (a 2, b 1, a 3). If the second period's shuffle begins with its last place, positions 0, 1 and
3 of a are drawn and 0 of b; the next phase, at any rates, draws 2, 4, 5, ... of a and 1, 2, ... of b.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from t5x_like.data import random
from t5x_like.data.mixture import Mixture, part_seed
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.stream import Stream
from t5x_like.data.task import Task
from t5x_like.errors import UserError

Key = tuple[str, str, int]  # of a stream: the part's label, its numbering and its number of examples


@dataclasses.dataclass(frozen=True)
class Phase:
  """Steps of a run that draw from one task in batches of one size."""

  task: Task
  batch_size: int
  steps: int


@dataclasses.dataclass(frozen=True)
class Start:
  """What a phase draws: example n of it is number `offset + n` of a task that reads `streams`.

  Attributes:
    task: the phase's.
    seed: the run's.
    offset: examples drawn before the phase by phases alike, which this one continues.
    streams: as the first of those found them: one for each part, in their order, or the one of a single task.
  """

  task: Task
  seed: int
  offset: int
  streams: tuple[Stream, ...]

  def batch(self, index_B: tf.Tensor) -> dict[str, tf.Tensor]:
    """The features of examples of the phase: int64 [B] -> each [B, *shape]."""
    index_B += self.offset
    if not isinstance(self.task, Mixture):
      (stream,) = self.streams
      return self.task.batch(*stream.at(index_B), stream.seed)
    period = self.task.schedule.period
    place_B, period_B = index_B % period, index_B // period
    return self.task.rows(random.shuffled(place_B, period_B, self.seed, period), period_B, self.streams)

  def after(self, examples: int) -> tuple[Stream, ...]:
    """The streams when the phase has drawn so many examples."""
    if not isinstance(self.task, Mixture):
      return tuple(stream.after(self.offset + examples) for stream in self.streams)
    drawn = self.task.schedule.drawn(self.offset + examples, self.seed)
    return tuple(stream.after(*found) for stream, found in zip(self.streams, drawn, strict=True))


def start(task: Task, seed: int, earlier: Sequence[Phase] = ()) -> Start:
  """Where a phase of `task` begins after others.

  Takes time and memory in the number of phases and the periods of their schedules, whatever the number of steps.

  Args:
    task: the phase's.
    seed: the run's.
    earlier: the phases before it, from the first step on.

  Raises:
    UserError: an earlier phase without steps or with an empty batch.
  """
  left: dict[Key, Stream] = {}
  tasks = [*(phase.task for phase in earlier), task]
  now, drawn = _begin(tasks[0], seed, left), 0
  for phase, following in zip(earlier, tasks[1:], strict=True):
    if phase.batch_size < 1 or phase.steps < 1:
      raise UserError(f"phase: found {phase.steps} steps of {phase.batch_size} examples, expected at least 1 of each")
    drawn += phase.batch_size * phase.steps
    if _draws(following) == _draws(phase.task):
      continue
    left |= dict(zip(_keys(phase.task), now.after(drawn), strict=True))
    now, drawn = _begin(following, seed, left), 0
  return dataclasses.replace(now, task=task, offset=drawn)


def _begin(task: Task, seed: int, left: dict[Key, Stream]) -> Start:
  keys, leaves = _keys(task), _leaves(task)
  fresh = (
    Stream(part_seed(seed, label) if label else seed, part.num_examples, repeats=part.repeats)
    for label, part in leaves.items()
  )
  return Start(task, seed, 0, tuple(left.get(key, new) for key, new in zip(keys, fresh, strict=True)))


def _leaves(task: Task) -> dict[str, Task]:
  return task.parts if isinstance(task, Mixture) else {"": task}


def _keys(task: Task) -> list[Key]:
  """What tells the streams of a task from all others."""
  return [(label, part.numbering or part.fingerprint, part.num_examples) for label, part in _leaves(task).items()]


def _draws(task: Task) -> tuple:
  """What the order of a task's draws depends on besides the seed; equal for phases that continue each other."""
  return (*_keys(task), task.schedule.counts if isinstance(task, Mixture) else ())
