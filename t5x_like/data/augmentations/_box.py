"""Random boxes inside an image, by area and aspect ratio."""

from __future__ import annotations

import math

from t5x_like.quiet_tensorflow import tf

TRIES = 10
NUMBERS = 2 * TRIES + 2  # random numbers: an area and a ratio for each try, and the position


def draw_box(
  u_N: tf.Tensor,
  height: tf.Tensor,
  width: tf.Tensor,
  area: tuple[float, ...],
  ratio: tuple[float, ...],
) -> tuple[tf.Tensor, tf.Tensor]:
  """Return the first of ten random boxes that fits, as in torchvision's `RandomResizedCrop`.

  Args:
    u_N: float32 [NUMBERS] in [0, 1).
    height, width: the size of the image, int32.
    area: the smallest and the largest share of the image's area.
    ratio: the smallest and the largest width over height; drawn uniformly in its logarithm.

  Returns:
    (int32 [4]: y, x, height, width; whether a box fitted). If none fits, the box is the largest one
    in the middle with an allowed ratio.
  """
  Y = tf.cast(height, tf.float32)
  X = tf.cast(width, tf.float32)
  area_T = Y * X * (area[0] + u_N[:TRIES] * (area[1] - area[0]))
  low = math.log(ratio[0])
  high = math.log(ratio[1])
  ratio_T = tf.exp(low + u_N[TRIES : 2 * TRIES] * (high - low))
  w_T = tf.round(tf.sqrt(area_T * ratio_T))
  h_T = tf.round(tf.sqrt(area_T / ratio_T))
  fits_T = (w_T >= 1) & (h_T >= 1) & (w_T <= X) & (h_T <= Y)
  first = tf.argmax(fits_T)
  any_fits = tf.reduce_any(fits_T)
  widest = tf.minimum(X, tf.round(Y * ratio[1]))
  highest = tf.minimum(Y, tf.round(X / ratio[0]))
  h = tf.where(any_fits, h_T[first], tf.maximum(highest, 1.0))
  w = tf.where(any_fits, w_T[first], tf.maximum(widest, 1.0))
  y = tf.where(any_fits, tf.floor(u_N[-2] * (Y - h + 1)), tf.floor((Y - h) / 2))
  x = tf.where(any_fits, tf.floor(u_N[-1] * (X - w + 1)), tf.floor((X - w) / 2))
  return tf.cast(tf.stack([y, x, h, w]), tf.int32), any_fits
