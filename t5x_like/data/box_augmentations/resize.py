"""A random size: the shorter side has one of several lengths (Carion et al. 2020, section 4)."""

from __future__ import annotations

from t5x_like.data.augmentations import Augmentation
from t5x_like.data.box_augmentations import Boxed, _sizes
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.slots import PositiveInt


def make(
  resolution: int,
  *,
  shortest: tuple[PositiveInt, ...] = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800),
  longest: PositiveInt | None = None,
) -> Augmentation[Boxed]:
  """Make the resizing; the longer side is at most `longest`, or the batch's resolution if that is
  less."""

  def apply(boxed: Boxed, u_1: tf.Tensor) -> Boxed:
    chosen = tf.constant(shortest)[tf.cast(u_1[0] * len(shortest), tf.int32)]
    return _sizes.resized(boxed[0], chosen, min(longest or resolution, resolution)), *boxed[1:]

  return Augmentation(1, apply)
