"""A random crop, by default with probability 1/2 (Carion et al. 2020, section 4)."""

from __future__ import annotations

from typing import Annotated

from t5x_like.contrib.detection.data.box_augmentations import Boxed, _sizes
from t5x_like.data.augmentations import Augmentation, Share
from t5x_like.quiet_tensorflow import tf
from t5x_like.slots import Condition, PositiveInt

Sides = Annotated[
  tuple[PositiveInt, ...],
  Condition("two numbers above 0, the smaller first", lambda n: len(n) == 2 and n[0] <= n[1]),
]
_LONGEST = 4  # times the shorter side; the few longer images would take gigabytes


def make(
  *,
  probability: Share = 0.5,
  shortest: tuple[PositiveInt, ...] = (400, 500, 600),
  sides: Sides = (384, 600),
  centres: bool = False,
) -> Augmentation[Boxed]:
  """Make the crop: the image is resized, then each side of the part has a random length.

  Args:
    probability: the probability of cropping.
    shortest: lengths of the shorter side of the resized image.
    sides: the least and the greatest side of the part, limited by the image.
    centres: whether to keep only boxes whose middle is in the part, not all that reach into it.
      Boxes are clipped.
  """
  smallest, largest = sides

  def crop(boxed: Boxed, u_N: tf.Tensor) -> Boxed:
    shorter_side = tf.constant(shortest)[tf.cast(u_N[1] * len(shortest), tf.int32)]
    image = _sizes.resize_sides(boxed[0], shorter_side, _LONGEST * max(shortest))
    size_2 = tf.shape(image)[:2]
    low_2 = tf.minimum(smallest, size_2)
    high_2 = tf.minimum(largest, size_2)
    part_2 = low_2 + tf.cast(u_N[2:4] * tf.cast(high_2 - low_2 + 1, tf.float32), tf.int32)
    start_2 = tf.cast(u_N[4:6] * tf.cast(size_2 - part_2 + 1, tf.float32), tf.int32)
    return _sizes.crop((image, *boxed[1:]), tf.concat([start_2, part_2], 0), centres)

  def apply(boxed: Boxed, u_N: tf.Tensor) -> Boxed:
    image, boxes_M4, real_M = tf.cond(u_N[0] < probability, lambda: crop(boxed, u_N), lambda: boxed)
    return tf.ensure_shape(image, [None, None, boxed[0].shape[-1]]), boxes_M4, real_M

  return Augmentation(6, apply)
