"""Consumption: the position in every corpus at which a phase of a run begins.

It follows from the draws of earlier phases. A run reads one *stream* for each part of a mixture; a
single task is a part without a label. If a part's task is replaced by another one, the new task
continues the stream if both have the same `Task.numbering`, that is, if an index means the same
text in both. Otherwise it begins a stream.

Positions of a stream count its examples epoch after epoch: position g is entry g % size of the
permutation of epoch g // size. A phase of n examples takes the next n positions of a task. A
mixture takes the positions in the first n slots of its schedule: it multiplies for whole periods,
and looks up only the slots of an unfinished one. That suffices to continue with another batch size,
other rates or other parts: no position is taken twice, and a part that pauses later continues where
it stopped.

Periods are shuffled, so a mixture that stops inside one has taken only some of its draws. The
skipped draws come first in the next phase that draws from the stream, so no example is lost.

Worked example: a period has three slots, two of part a and one of part b. Before they are shuffled,
the first two periods are (a 0, b 0, a 1) and (a 2, b 1, a 3). A phase of 4 examples takes the first
period and one slot of the second. If the shuffle moves the last slot of the second period to its
beginning, the phase draws positions 0, 1 and 3 of a, and 0 of b. The next phase, at any rates,
draws positions 2, 4, 5, … of a and 1, 2, … of b.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from t5x_like.data.stream import Stream, part_seed
from t5x_like.data.task import Task
from t5x_like.errors import UserError
from t5x_like.quiet_tensorflow import tf

# What identifies a stream: the part's label, its numbering and its number of examples.
StreamKey = tuple[str, str, int]


@dataclasses.dataclass(frozen=True)
class Phase:
  """Steps of a run that draw from one task in batches of one size."""

  task: Task
  batch_size: int
  steps: int


@dataclasses.dataclass(frozen=True)
class PhaseStart:
  """The beginning of a phase, whose example n is draw `offset + n` of the task from `streams`.

  Attributes:
    task: the task of the phase.
    seed: the seed of the run.
    offset: number of examples that the phases directly before it have drawn in the same order
      (`_draw_order`); this phase continues them.
    streams: the streams where the first of these phases began: one per part, in order, or the
      single task's stream.
  """

  task: Task
  seed: int
  offset: int
  streams: tuple[Stream, ...]

  def batch(self, index_B: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return the features of examples of the phase: int64 [B] -> each [B, *shape]."""
    return self.task.draw(index_B + self.offset, self.seed, self.streams)

  def advance(self, examples: int) -> tuple[Stream, ...]:
    """Return the streams after the phase has drawn `examples` examples."""
    return self.task.advance(self.offset + examples, self.seed, self.streams)


def phase_start(task: Task, seed: int, earlier: Sequence[Phase] = ()) -> PhaseStart:
  """Return the start of a phase of `task` after earlier phases.

  Time and memory grow with the number of phases and the periods of their schedules, not with the
  number of steps.

  Args:
    task: the task of the phase.
    seed: the seed of the run.
    earlier: the preceding phases, from the run's first step on.

  Raises:
    UserError: an earlier phase without steps or with an empty batch.
  """
  streams: dict[StreamKey, Stream] = {}
  tasks = [*(phase.task for phase in earlier), task]
  start = _begin(tasks[0], seed, streams)
  num_drawn = 0
  for phase, next_task in zip(earlier, tasks[1:], strict=True):
    if phase.batch_size < 1 or phase.steps < 1:
      raise UserError(
        f"phase: found {phase.steps} steps of {phase.batch_size} examples, expected "
        "at least 1 of each"
      )
    num_drawn += phase.batch_size * phase.steps
    if _draw_order(next_task) == _draw_order(phase.task):
      continue
    streams.update(zip(_keys(phase.task), start.advance(num_drawn), strict=True))
    start = _begin(next_task, seed, streams)
    num_drawn = 0
  return dataclasses.replace(start, task=task, offset=num_drawn)


def _begin(task: Task, seed: int, streams: dict[StreamKey, Stream]) -> PhaseStart:
  """Return the start of a task, which continues its known streams and begins the missing ones."""
  leaf_streams = []
  for key, (label, part) in zip(_keys(task), task.leaves.items(), strict=True):
    stream_seed = part_seed(seed, label) if label else seed
    new_stream = Stream(stream_seed, part.num_examples, repeats=part.repeats)
    leaf_streams.append(streams.get(key, new_stream))
  return PhaseStart(task, seed, 0, tuple(leaf_streams))


def _keys(task: Task) -> list[StreamKey]:
  """Return the keys that identify the streams of a task."""
  return [
    (label, part.numbering or part.fingerprint, part.num_examples)
    for label, part in task.leaves.items()
  ]


def _draw_order(task: Task) -> tuple:
  """Return everything, apart from the seed, that determines the order of a task's draws.

  It is equal for phases that continue each other.
  """
  return (*_keys(task), task.counts)
