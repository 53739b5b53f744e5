"""Brightness, contrast and saturation, each by a random factor, in a random order, as torchvision
has it."""

from __future__ import annotations

import functools
import itertools

from t5x_like.data.augmentations import Augmentation, _pixels
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.slots import NonNegativeFloat


def make(
  *,
  brightness: NonNegativeFloat = 0.3,
  contrast: NonNegativeFloat = 0.3,
  saturation: NonNegativeFloat = 0.3,
) -> Augmentation:
  """Make the change; a strength s draws a factor between 1 - s (but at least 0) and 1 + s."""
  steps = (
    (_pixels.brightness, brightness),
    (_pixels.contrast, contrast),
    (_pixels.saturation, saturation),
  )

  orders = list(itertools.permutations(range(len(steps))))

  def changed(image_YXC: tf.Tensor, u_4: tf.Tensor, order: tuple[int, ...]) -> tf.Tensor:
    for number in order:
      change, strength = steps[number]
      low = max(0.0, 1.0 - strength)
      image_YXC = change(image_YXC, low + u_4[number] * (1.0 + strength - low))
    return image_YXC

  def apply(image_YXC: tf.Tensor, u_4: tf.Tensor) -> tf.Tensor:
    made = [functools.partial(changed, image_YXC, u_4, order) for order in orders]
    return tf.ensure_shape(
      tf.switch_case(tf.cast(u_4[3] * len(orders), tf.int32), made), image_YXC.shape
    )

  return Augmentation(4, apply)
