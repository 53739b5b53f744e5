"""A stream: the endless sequence of a corpus's examples, epoch after epoch, and its next one.

The examples are numbered by *position*, from 0 in epoch 0. A phase of a run takes *draws* from the
stream, numbered from 0 in each phase. Usually draw n is at position `next + n`. A mixture can end a
phase with some positions skipped (`consumption.py`); the first draws of the next phase are then at
those.
"""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

from t5x_like.data import random
from t5x_like.quiet_tensorflow import tf


@dataclasses.dataclass(frozen=True, eq=False)
class Stream:
  """A stream from some point on.

  Attributes:
    seed: the seed of its epochs' permutations and of the task's random draws for an example.
    size: distinct examples in an epoch.
    next: the position after the last one drawn.
    skipped: the positions before `next` that were not drawn, int64 ascending; draw 0 is at the
      first of them.
    repeats: consecutive copies of each example per epoch; the task sees the copies as different
      epochs.
  """

  seed: int
  size: int
  next: int = 0
  skipped: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
  repeats: int = 1

  def locate(self, draw_B: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return (example, epoch) of each draw, both int64 [B]."""
    num_skipped = self.skipped.size
    position_B = draw_B + (self.next - num_skipped)
    if num_skipped:
      skipped_B = tf.gather(self.skipped, tf.minimum(draw_B, num_skipped - 1))
      position_B = tf.where(draw_B < num_skipped, skipped_B, position_B)
    copy_B = position_B % self.repeats
    position_B = position_B // self.repeats
    epoch_B = position_B // self.size
    index_B = position_B % self.size
    example_B = random.shuffle(index_B, epoch_B, self.seed, self.size)
    return example_B, epoch_B * self.repeats + copy_B

  def advance(self, num_draws: int, later_draws: np.ndarray | None = None) -> Stream:
    """Return the stream after the draws 0 to `num_draws` - 1 and some later ones.

    Args:
      num_draws: the number of draws without a gap.
      later_draws: further draws, int64 [N] ascending.
    """
    if later_draws is None:
      later_draws = np.zeros(0, np.int64)
    num_skipped = self.skipped.size
    last_end = int(later_draws[-1]) + 1 if later_draws.size else 0
    end = max(num_draws, num_skipped, last_end)
    missing_draws = np.setdiff1d(np.arange(num_draws, end), later_draws)
    still_skipped = self.skipped[missing_draws[missing_draws < num_skipped]]
    newly_skipped = missing_draws[missing_draws >= num_skipped] + self.next - num_skipped
    return dataclasses.replace(
      self,
      next=self.next + end - num_skipped,
      skipped=np.concatenate([still_skipped, newly_skipped]),
    )


def part_seed(seed: int, label: str) -> int:
  """Derive a part's seed from a mixture's seed and the part's label.

  Two parts over the same corpus thus draw independently.
  """
  digest = hashlib.sha256(f"{seed}/{label}".encode()).digest()
  return int.from_bytes(digest[:8], "little")
