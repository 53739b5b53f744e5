"""A horizontal flip, by default with probability 1/2."""

from __future__ import annotations

from t5x_like.contrib.detection.data.box_augmentations import Boxed
from t5x_like.data.augmentations import Augmentation, Share
from t5x_like.quiet_tensorflow import tf


def make(*, probability: Share = 0.5) -> Augmentation[Boxed]:
  def apply(boxed: Boxed, u_1: tf.Tensor) -> Boxed:
    image_YXC, boxes_M4, real_M = boxed
    y0, x0, y1, x1 = tf.unstack(boxes_M4, axis=1)
    flipped_M4 = tf.stack([y0, 1.0 - x1, y1, 1.0 - x0], axis=1)
    is_flipped = u_1[0] < probability
    image_YXC = tf.cond(is_flipped, lambda: tf.reverse(image_YXC, [1]), lambda: image_YXC)
    return image_YXC, tf.where(is_flipped, flipped_M4, boxes_M4), real_M

  return Augmentation(1, apply)
