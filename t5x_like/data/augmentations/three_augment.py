"""3-Augment: greyscale, solarisation or blur (DeiT III, Touvron et al. 2022, section 3.2)."""

from __future__ import annotations

from t5x_like.data.augmentations import Augmentation, _pixels
from t5x_like.quiet_tensorflow import tf


def make() -> Augmentation:
  """Build the augmentation, which makes one of the three changes, each as likely.

  Solarisation inverts pixels from 128 on. The deviation of the blur is uniform in 0.1 to 2 pixels.
  """

  def apply(image_YXC: tf.Tensor, u_2: tf.Tensor) -> tf.Tensor:
    branches = [
      lambda: _pixels.to_grey(image_YXC),
      lambda: _pixels.solarize(image_YXC, tf.constant(128.0)),
      lambda: _pixels.blur(image_YXC, 0.1 + 1.9 * u_2[1]),
    ]
    image = tf.switch_case(tf.cast(u_2[0] * 3, tf.int32), branches)
    return tf.ensure_shape(image, [None, None, image_YXC.shape[-1]])

  return Augmentation(2, apply)
