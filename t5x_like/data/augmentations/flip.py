"""A horizontal flip, by default with probability 1/2."""

from __future__ import annotations

from t5x_like.data.augmentations import Augmentation, Share
from t5x_like.quiet_tensorflow import tf


def make(*, probability: Share = 0.5) -> Augmentation:
  """Build the augmentation, which mirrors an image with a probability."""

  def apply(image_YXC: tf.Tensor, u_1: tf.Tensor) -> tf.Tensor:
    return tf.cond(u_1[0] < probability, lambda: tf.reverse(image_YXC, [1]), lambda: image_YXC)

  return Augmentation(1, apply)
