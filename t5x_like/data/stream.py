"""A stream: the endless sequence of a corpus's examples, epoch after epoch, and how far it has been
drawn."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

from t5x_like.data import random
from t5x_like.data.quiet_tensorflow import tf


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
  """A stream from some point on: draw 0 is its next example.

  Attributes:
    seed: the seed of its epochs' permutations and of the task's random draws for an example.
    size: distinct examples in an epoch.
    next: the first position from which on nothing has been drawn.
    passed: skipped positions before `next`, int64 ascending; they are drawn first.
    repeats: consecutive copies of each example per epoch; the task sees the copies as different
      epochs.
  """

  seed: int
  size: int
  next: int = 0
  passed: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
  repeats: int = 1

  def locate(self, draw_B: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return (example, epoch) of each draw, both int64 [B]."""
    position_B = draw_B + (self.next - self.passed.size)
    if self.passed.size:
      early_B = tf.gather(self.passed, tf.minimum(draw_B, self.passed.size - 1))
      position_B = tf.where(draw_B < self.passed.size, early_B, position_B)
    turn_B = position_B % self.repeats
    position_B = position_B // self.repeats
    epoch_B = position_B // self.size
    place_B = position_B % self.size
    return random.shuffle(place_B, epoch_B, self.seed, self.size), epoch_B * self.repeats + turn_B

  def advance(self, whole: int, more: np.ndarray = np.zeros(0, np.int64)) -> Stream:  # noqa: B008
    """Return the stream after draws 0..whole-1 and the later draws in `more`, int64 [N]
    ascending."""
    end = max(whole, self.passed.size, int(more[-1]) + 1 if more.size else 0)
    rest = np.setdiff1d(np.arange(whole, end), more)
    passed = np.where(
      rest < self.passed.size,
      np.append(self.passed, 0)[np.minimum(rest, self.passed.size)],
      rest + self.next - self.passed.size,
    )
    return dataclasses.replace(self, next=self.next + end - self.passed.size, passed=passed)


def part_seed(seed: int, label: str) -> int:
  """Derive a part's seed from a mixture's seed and the part's label: parts over one corpus draw
  independently."""
  return int.from_bytes(hashlib.sha256(f"{seed}/{label}".encode()).digest()[:8], "little")
