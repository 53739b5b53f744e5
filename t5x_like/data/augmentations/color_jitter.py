"""Random factors of brightness, contrast and saturation in a random order, as in torchvision."""

from __future__ import annotations

import functools
import itertools

from t5x_like.data.augmentations import Augmentation, _pixels
from t5x_like.quiet_tensorflow import tf
from t5x_like.slots import NonNegativeFloat


def make(
  *,
  brightness: NonNegativeFloat = 0.3,
  contrast: NonNegativeFloat = 0.3,
  saturation: NonNegativeFloat = 0.3,
) -> Augmentation:
  """Build the augmentation from the strength of each change.

  A strength s draws a factor from 1 - s, but at least 0, to 1 + s.
  """
  steps = (
    (_pixels.brightness, brightness),
    (_pixels.contrast, contrast),
    (_pixels.saturation, saturation),
  )
  orders = list(itertools.permutations(range(len(steps))))

  def jitter(image_YXC: tf.Tensor, u_4: tf.Tensor, order: tuple[int, ...]) -> tf.Tensor:
    for step in order:
      change, strength = steps[step]
      low = max(0.0, 1.0 - strength)
      image_YXC = change(image_YXC, low + u_4[step] * (1.0 + strength - low))
    return image_YXC

  def apply(image_YXC: tf.Tensor, u_4: tf.Tensor) -> tf.Tensor:
    branches = [functools.partial(jitter, image_YXC, u_4, order) for order in orders]
    # The first three random numbers are for the factors, the last is for the order.
    branch = tf.cast(u_4[3] * len(orders), tf.int32)
    return tf.ensure_shape(tf.switch_case(branch, branches), image_YXC.shape)

  return Augmentation(4, apply)
