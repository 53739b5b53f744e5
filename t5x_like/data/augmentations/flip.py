"""Flip images horizontally at random."""

from __future__ import annotations

from t5x_like.data.augmentations import Augmentation, Share
from t5x_like.quiet_tensorflow import tf


def make(*, probability: Share = 0.5) -> Augmentation:
  """Build an augmentation that mirrors an image left to right with the given probability."""

  def apply(image_YXC: tf.Tensor, u_1: tf.Tensor) -> tf.Tensor:
    return tf.cond(u_1[0] < probability, lambda: tf.reverse(image_YXC, [1]), lambda: image_YXC)

  return Augmentation(numbers=1, apply=apply)
