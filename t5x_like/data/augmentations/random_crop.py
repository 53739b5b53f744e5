"""A random crop of the image's own size after adding a border (Krizhevsky et al. 2012)."""

from __future__ import annotations

from t5x_like.data.augmentations import Augmentation
from t5x_like.quiet_tensorflow import tf
from t5x_like.slots import PositiveInt


def make(*, border: PositiveInt = 4) -> Augmentation:
  """Build the augmentation; `border` is the number of black pixels on each side."""

  def apply(image_YXC: tf.Tensor, u_2: tf.Tensor) -> tf.Tensor:
    shape = tf.shape(image_YXC)
    bordered = tf.pad(image_YXC, [[border, border], [border, border], [0, 0]])
    y, x = tf.unstack(tf.cast(u_2 * (2 * border + 1), tf.int32))
    return bordered[y : y + shape[0], x : x + shape[1]]

  return Augmentation(2, apply)
