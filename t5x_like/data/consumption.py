"""Consumption: the position in every corpus at which a phase of a run begins.

It follows from the draws of earlier phases. A run reads a few *streams*, one for each part of a
mixture and each numbering of its examples (in tasks with the same `Task.numbering`, an index means
the same text, so one task continues the other). A single task is a part without a label. Positions
of a stream count its examples epoch after epoch: position g is entry g % size of the permutation of
epoch g // size. A phase of n examples takes the next n positions of a task. A mixture takes the
positions in the first n slots of its schedule: whole periods by multiplication, the rest of one
period by a table. That suffices to continue with another batch size, other rates or other parts: no
position is taken twice, and a part that pauses later continues where it stopped.

Periods are shuffled, so a mixture that stops inside one has taken only some of its draws. The
skipped draws come first in the next phase that draws from the stream, so no example is lost.

Worked example: parts a and b at counts (2, 1) for a phase of 4 examples, whose slots hold,
before the shuffle of each period, (a 0, b 0, a 1), (a 2, b 1, a 3). If the second period's shuffle
begins with its last slot, positions 0, 1 and 3 of a are drawn and 0 of b; the next phase, at
any rates, draws 2, 4, 5, ... of a and 1, 2, ... of b.
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
  """The beginning of a phase: its example n is example `offset + n` of the task over `streams`.

  Attributes:
    task: the task of the phase.
    seed: the seed of the run.
    offset: examples drawn by directly preceding phases with the same draws, which this phase
      continues.
    streams: the streams at the first of these phases: one per part, in order, or the single task's
      stream.
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
    if _draws(next_task) == _draws(phase.task):
      continue
    streams.update(zip(_keys(phase.task), start.advance(num_drawn), strict=True))
    start = _begin(next_task, seed, streams)
    num_drawn = 0
  return dataclasses.replace(start, task=task, offset=num_drawn)


def _begin(task: Task, seed: int, streams: dict[StreamKey, Stream]) -> PhaseStart:
  """Return the start of a task that continues the known streams and begins others."""
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


def _draws(task: Task) -> tuple:
  """Return all that determines the order of draws besides the seed.

  It is equal for phases that continue each other.
  """
  return (*_keys(task), task.counts)
