"""A stream: the endless sequence of a corpus's examples, and how far it has been drawn."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

from t5x_like.data import random
from t5x_like.quiet_tensorflow import tf


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
    copy_B = position_B % self.repeats
    position_B = position_B // self.repeats
    epoch_B = position_B // self.size
    index_B = position_B % self.size
    example_B = random.shuffle(index_B, epoch_B, self.seed, self.size)
    return example_B, epoch_B * self.repeats + copy_B

  def advance(self, num_draws: int, later_draws: np.ndarray | None = None) -> Stream:
    """Return the stream after some draws.

    Args:
      num_draws: the draws 0..num_draws-1 are made.
      later_draws: further draws that are made, int64 [N] ascending.
    """
    if later_draws is None:
      later_draws = np.zeros(0, np.int64)
    num_passed = self.passed.size
    last_end = int(later_draws[-1]) + 1 if later_draws.size else 0
    end = max(num_draws, num_passed, last_end)
    skipped = np.setdiff1d(np.arange(num_draws, end), later_draws)
    passed = np.where(
      skipped < num_passed,
      np.append(self.passed, 0)[np.minimum(skipped, num_passed)],
      skipped + self.next - num_passed,
    )
    return dataclasses.replace(self, next=self.next + end - num_passed, passed=passed)


def part_seed(seed: int, label: str) -> int:
  """Derive a part's seed from a mixture's seed and the part's label.

  So parts over one corpus draw independently.
  """
  digest = hashlib.sha256(f"{seed}/{label}".encode()).digest()
  return int.from_bytes(digest[:8], "little")
