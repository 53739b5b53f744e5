"""Brightness, contrast and saturation, each by a random factor."""

from __future__ import annotations

from t5x_like.data.augmentations import Augmentation, _pixels
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.slots import NotNegative


def make(*, brightness: NotNegative = 0.3, contrast: NotNegative = 0.3, saturation: NotNegative = 0.3) -> Augmentation:
  """Make the change; a strength s draws a factor between 1 - s (but at least 0) and 1 + s."""
  steps = ((_pixels.brightness, brightness), (_pixels.contrast, contrast), (_pixels.saturation, saturation))

  def apply(image_YXC: tf.Tensor, u_3: tf.Tensor) -> tf.Tensor:
    for number, (change, strength) in enumerate(steps):
      low = max(0.0, 1.0 - strength)
      image_YXC = change(image_YXC, low + u_3[number] * (1.0 + strength - low))
    return image_YXC

  return Augmentation(3, apply)
