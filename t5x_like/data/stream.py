"""A stream: the endless sequence of a corpus's examples, epoch after epoch, and how far it has been drawn."""

from __future__ import annotations

import dataclasses

import numpy as np

from t5x_like.data import random
from t5x_like.data.quiet_tensorflow import tf


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
  """A stream from some point on: draw 0 is the next that it gives.

  Attributes:
    seed: of its epochs' permutations, and of what the task draws for an example.
    size: different examples in an epoch.
    next: the first position that nothing was drawn from yet, nor any after it.
    passed: positions before it that were passed over, int64 ascending; they are drawn first.
    repeats: times that an example stands in its epoch, one after the other; to the task, they are of different epochs.
  """

  seed: int
  size: int
  next: int = 0
  passed: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
  repeats: int = 1

  def at(self, draw_B: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """(example, epoch) of draws, each int64 [B]."""
    position_B = draw_B + (self.next - self.passed.size)
    if self.passed.size:
      early_B = tf.gather(self.passed, tf.minimum(draw_B, self.passed.size - 1))
      position_B = tf.where(draw_B < self.passed.size, early_B, position_B)
    turn_B, position_B = position_B % self.repeats, position_B // self.repeats
    epoch_B, place_B = position_B // self.size, position_B % self.size
    return random.shuffled(place_B, epoch_B, self.seed, self.size), epoch_B * self.repeats + turn_B

  def after(self, whole: int, more: np.ndarray = np.zeros(0, np.int64)) -> Stream:  # noqa: B008
    """The stream when draws 0..whole-1 were made, and those in `more`, which lie behind them: int64 [N] ascending."""
    end = max(whole, self.passed.size, int(more[-1]) + 1 if more.size else 0)
    rest = np.setdiff1d(np.arange(whole, end), more)
    passed = np.where(
      rest < self.passed.size,
      np.append(self.passed, 0)[np.minimum(rest, self.passed.size)],
      rest + self.next - self.passed.size,
    )
    return dataclasses.replace(self, next=self.next + end - self.passed.size, passed=passed)
