"""RandAugment: random ones of fourteen changes, at one magnitude (Cubuk et al. 2020, arXiv:1909.13719)."""

from __future__ import annotations

import math

from t5x_like.data.augmentations import Augmentation, _pixels
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.slots import Positive


def changes(image: tf.Tensor, size: tf.Tensor, sign: tf.Tensor) -> list:
  """Return the changes as functions without arguments.

  Args:
    size: the magnitude as a share of its range, 0 to 1.
    sign: 1 or -1.
  """
  signed, shape = size * sign, tf.cast(tf.shape(image), tf.float32)
  angle = signed * (30 * math.pi / 180)
  factor = 1.0 + 0.9 * signed
  cos, sin = tf.cos(angle), tf.sin(angle)
  return [
    lambda: image,
    lambda: _pixels.affine(image, [1.0, 0.3 * signed, 0.0, 0.0, 1.0, 0.0]),  # shear
    lambda: _pixels.affine(image, [1.0, 0.0, 0.0, 0.3 * signed, 1.0, 0.0]),
    lambda: _pixels.affine(image, [1.0, 0.0, 0.45 * signed * shape[1], 0.0, 1.0, 0.0]),  # shift
    lambda: _pixels.affine(image, [1.0, 0.0, 0.0, 0.0, 1.0, 0.45 * signed * shape[0]]),
    lambda: _pixels.affine(image, [cos, sin, 0.0, -sin, cos, 0.0]),
    lambda: _pixels.brightness(image, factor),
    lambda: _pixels.saturation(image, factor),
    lambda: _pixels.contrast(image, factor),
    lambda: _pixels.sharpness(image, factor),
    lambda: _pixels.posterize(image, 8 - tf.cast(tf.round(4 * size), tf.int32)),
    lambda: _pixels.solarize(image, 256.0 * (1.0 - size)),
    lambda: _pixels.autocontrast(image),
    lambda: _pixels.equalize(image),
  ]


_CHANGES = 14


def make(*, ops: Positive = 2, magnitude: float = 9.0) -> Augmentation:
  """Make `ops` changes at a `magnitude` of 0 to 10; the direction of each change is random."""

  def apply(image_YXC: tf.Tensor, u_N: tf.Tensor) -> tf.Tensor:
    for number in range(ops):
      which, sign = tf.cast(u_N[2 * number] * _CHANGES, tf.int32), tf.sign(u_N[2 * number + 1] - 0.5 + 1e-9)
      channels = image_YXC.shape[-1]
      image_YXC = tf.switch_case(which, changes(image_YXC, tf.constant(magnitude / 10), sign))
      image_YXC = tf.ensure_shape(image_YXC, [None, None, channels])
    return image_YXC

  return Augmentation(2 * ops, apply)
