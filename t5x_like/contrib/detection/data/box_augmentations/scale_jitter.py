"""Scale jitter: a random size, and a random crop if it is too large (Ghiasi et al. 2021, LSJ)."""

from __future__ import annotations

from t5x_like.contrib.detection.data.box_augmentations import Boxed, _sizes
from t5x_like.data.augmentations import Augmentation, Range
from t5x_like.quiet_tensorflow import tf


def make(
  resolution: int, *, scale: Range = (0.1, 2.0), centres: bool = True
) -> Augmentation[Boxed]:
  """Make the jitter.

  Args:
    scale: the range of the longer side as a share of the resolution.
    centres: as in `crop`.
  """
  low, high = scale

  def apply(boxed: Boxed, u_3: tf.Tensor) -> Boxed:
    longest = tf.cast(tf.reduce_max(tf.shape(boxed[0])[:2]), tf.float32)
    target = (low + u_3[0] * (high - low)) * resolution
    image = _sizes.scale(boxed[0], target / longest)
    size_2 = tf.shape(image)[:2]
    part_2 = tf.minimum(size_2, resolution)
    start_2 = tf.cast(u_3[1:3] * tf.cast(size_2 - part_2 + 1, tf.float32), tf.int32)
    box_4 = tf.concat([start_2, part_2], 0)
    image_YXC, boxes_M4, real_M = _sizes.crop((image, *boxed[1:]), box_4, centres)
    image_YXC = tf.ensure_shape(image_YXC, [None, None, boxed[0].shape[-1]])
    return image_YXC, boxes_M4, real_M

  return Augmentation(3, apply)
