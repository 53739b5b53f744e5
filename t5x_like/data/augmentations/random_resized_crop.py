"""A random part of the image, resized to the batch's resolution (Szegedy et al. 2015)."""

from __future__ import annotations

from typing import Literal

from t5x_like.data.augmentations import Augmentation, Range, _box, _pixels, _resize
from t5x_like.quiet_tensorflow import tf
from t5x_like.resolution import Resolution, height_and_width


def make(
  resolution: Resolution,
  *,
  area: Range = (0.08, 1.0),
  ratio: Range = (3 / 4, 4 / 3),
  method: Literal["bilinear", "bicubic"] = "bicubic",
) -> Augmentation:
  """Make the crop.

  Args:
    area: the range of the part's share of the image.
    ratio: the range of its width over height.
    method: the interpolation of resizing.
  """

  def box(size_2: tf.Tensor, u_N: tf.Tensor) -> tf.Tensor:
    return _box.draw_box(u_N, size_2[0], size_2[1], area, ratio)[0]

  def apply(part_YXC: tf.Tensor, _) -> tf.Tensor:
    return _pixels.clip(_resize.resize(part_YXC, height_and_width(resolution), method))

  return Augmentation(_box.NUMBERS, apply, box)
