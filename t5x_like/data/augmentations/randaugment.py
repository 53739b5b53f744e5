"""RandAugment: some of fifteen random changes, at one magnitude with noise.

Cubuk et al. 2020, arXiv:1909.13719. The rule is timm's `rand-m9-mstd0.5-inc1`, which DeiT, Swin,
MAE, MViT and ConvNeXt use: changes grow with the magnitude, each is left out half of the time, and
the magnitude is drawn for each change. Rotations, shears and translations are bilinear here and
bicubic in these authors' runs.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np

from t5x_like.data.augmentations import Augmentation, Share, _pixels
from t5x_like.quiet_tensorflow import tf
from t5x_like.slots import Condition, NonNegativeFloat, PositiveInt

NAMES = (
  "auto_contrast equalize invert rotate posterize solarize solarize_add color contrast brightness "
  "sharpness shear_x shear_y translate_x translate_y"
).split()
NUMBERS = 4  # random numbers of one change
_MAX_MAGNITUDE = 10.0
Magnitude = Annotated[float, Condition("a number from 0 to 10", lambda x: 0 <= x <= _MAX_MAGNITUDE)]


def draw_changes(
  u: tf.Tensor, magnitude: float, deviation: float, probability: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Draw which changes are made, their magnitudes and their directions.

  Args:
    u: float32 [..., NUMBERS] in [0, 1).
    magnitude, deviation: mean and standard deviation of the magnitude, before it is cut off at 0
      and 10.
    probability: the probability of making the change at all.

  Returns:
    (int32 [...], the number of the change in `NAMES`, or -1 for none; float32 [...], the magnitude;
    float32 [...], 1 or -1).
  """
  number = tf.where(u[..., 1] < probability, tf.cast(u[..., 0] * len(NAMES), tf.int32), -1)
  noise = tf.math.ndtri(tf.clip_by_value(u[..., 2], 1e-7, 1 - 1e-7))
  level = tf.clip_by_value(magnitude + deviation * noise, 0.0, _MAX_MAGNITUDE)
  return number, level, tf.where(u[..., 3] < 0.5, -1.0, 1.0)


def changes(image: tf.Tensor, level: tf.Tensor, sign: tf.Tensor, fill: tuple[float, ...]) -> list:
  """Return the changes as functions without arguments, in the order of `NAMES`.

  Args:
    image: float32 [Y, X, C] in 0 to 255.
    level: the magnitude, 0 to 10.
    sign: 1 or -1.
    fill: the colour outside of the image, for affine maps: a number per channel, in 0 to 255.
  """
  size = level / _MAX_MAGNITUDE
  shape = tf.cast(tf.shape(image), tf.float32)
  signed = size * sign
  angle = signed * (30 * math.pi / 180)
  factor = tf.maximum(0.1, 1.0 + 0.9 * signed)
  cos = tf.cos(angle)
  sin = tf.sin(angle)

  def move(*matrix) -> tf.Tensor:
    ones_C = np.ones(len(fill))
    colour_C = np.array(fill)
    centred = _pixels.linear(image, ones_C, -colour_C)
    moved = _pixels.affine(centred, list(matrix), fill=0.0)
    return _pixels.clip(_pixels.linear(moved, ones_C, colour_C))

  shear = 0.3 * signed
  shift = 0.45 * signed
  return [
    lambda: _pixels.autocontrast(image),
    lambda: _pixels.equalize(image),
    lambda: 255.0 - image,
    lambda: move(cos, -sin, 0.0, sin, cos, 0.0),
    lambda: _pixels.posterize(image, 4 - tf.cast(4 * size, tf.int32)),
    lambda: _pixels.solarize(image, 256.0 - tf.floor(256 * size)),
    lambda: _pixels.select(image < 128.0, _pixels.clip(image + tf.floor(110 * size)), image),
    lambda: _pixels.saturation(image, factor),
    lambda: _pixels.contrast(image, factor),
    lambda: _pixels.brightness(image, factor),
    lambda: _pixels.sharpness(image, factor),
    lambda: move(1.0, shear, shear * shape[0] / 2, 0.0, 1.0, 0.0),  # about the corner, as in Pillow
    lambda: move(1.0, 0.0, 0.0, shear, 1.0, shear * shape[1] / 2),
    lambda: move(1.0, 0.0, shift * shape[1], 0.0, 1.0, 0.0),
    lambda: move(1.0, 0.0, 0.0, 0.0, 1.0, shift * shape[0]),
  ]


def make(
  mean: tuple,
  *,
  ops: PositiveInt = 2,
  magnitude: Magnitude = 9.0,
  deviation: NonNegativeFloat = 0.5,
  probability: Share = 0.5,
) -> Augmentation:
  """Build the augmentation, which makes `ops` random changes; the same one may occur twice.

  Args:
    magnitude: mean of the magnitudes, of 10.
    deviation: standard deviation of the magnitudes.
    probability: the probability of making each of the changes.
  """
  fill = tuple(min(255.0, round(255 * m)) for m in mean)

  def apply(image_YXC: tf.Tensor, u_N: tf.Tensor) -> tf.Tensor:
    channels = image_YXC.shape[-1]
    for op in range(ops):
      u_n = u_N[NUMBERS * op : NUMBERS * (op + 1)]
      number, level, sign = draw_changes(u_n, magnitude, deviation, probability)
      branches = [lambda image=image_YXC: image]  # no change
      branches += changes(image_YXC, level, sign, fill)
      image_YXC = tf.ensure_shape(tf.switch_case(number + 1, branches), [None, None, channels])
    return image_YXC

  return Augmentation(NUMBERS * ops, apply)
