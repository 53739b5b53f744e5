"""A horizontal flip, by default with probability 1/2."""

from __future__ import annotations

from t5x_like.data.augmentations import Augmentation
from t5x_like.data.quiet_tensorflow import tf


def make(*, probability: float = 0.5) -> Augmentation:
  return Augmentation(1, lambda image_YXC, u_1: tf.where(u_1[0] < probability, image_YXC[:, ::-1], image_YXC))
