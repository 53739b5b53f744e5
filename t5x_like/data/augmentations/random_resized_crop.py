"""A random part of the image, resized to the batch's resolution (Szegedy et al. 2015)."""

from __future__ import annotations

from typing import Literal

from t5x_like.data.augmentations import Augmentation, _box
from t5x_like.data.quiet_tensorflow import tf


def make(
  resolution: int,
  *,
  area: tuple[float, ...] = (0.08, 1.0),
  ratio: tuple[float, ...] = (3 / 4, 4 / 3),
  method: Literal["bilinear", "bicubic"] = "bicubic",
) -> Augmentation:
  """Make the crop.

  Args:
    area: the range of the part's share of the image.
    ratio: the range of its width over height.
    method: the interpolation of resizing.
  """

  def apply(image_YXC: tf.Tensor, u_N: tf.Tensor) -> tf.Tensor:
    shape = tf.shape(image_YXC)
    box_4, _ = _box.box(u_N, shape[0], shape[1], _box.pair(area), _box.pair(ratio))
    y, x, h, w = tf.unstack(box_4)
    part = image_YXC[y : y + h, x : x + w]
    return tf.clip_by_value(tf.image.resize(part, (resolution, resolution), method, antialias=True), 0.0, 255.0)

  return Augmentation(_box.NUMBERS, apply)
