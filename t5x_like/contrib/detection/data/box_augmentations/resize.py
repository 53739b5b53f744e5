"""A random size: the shorter side has one of several lengths (Carion et al. 2020, section 4)."""

from __future__ import annotations

from t5x_like.contrib.detection.data.box_augmentations import Boxed, _sizes
from t5x_like.data.augmentations import Augmentation
from t5x_like.quiet_tensorflow import tf
from t5x_like.slots import PositiveInt


def make(
  resolution: int,
  *,
  shortest: tuple[PositiveInt, ...] = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800),
  longest: PositiveInt | None = None,
) -> Augmentation[Boxed]:
  """Make the resizing; the longer side is at most `longest` and the batch's resolution."""

  def apply(boxed: Boxed, u_1: tf.Tensor) -> Boxed:
    shorter_side = tf.constant(shortest)[tf.cast(u_1[0] * len(shortest), tf.int32)]
    longest_side = min(longest or resolution, resolution)
    return _sizes.resize_sides(boxed[0], shorter_side, longest_side), *boxed[1:]

  return Augmentation(1, apply)
