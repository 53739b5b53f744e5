"""A random crop of the image, resized to the batch's resolution (Szegedy et al. 2015)."""

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
  """Build the augmentation, which draws a crop by its area and aspect ratio and resizes it.

  Args:
    area: the range of the crop's area, as a share of the image's.
    ratio: the range of the crop's width over its height.
    method: the interpolation of resizing.
  """

  def box(size_2: tf.Tensor, u_N: tf.Tensor) -> tf.Tensor:
    box_4, _ = _box.draw_box(u_N, size_2[0], size_2[1], area, ratio)
    return box_4

  def apply(crop_YXC: tf.Tensor, _) -> tf.Tensor:
    return _pixels.clip(_resize.resize(crop_YXC, height_and_width(resolution), method))

  return Augmentation(_box.NUMBERS, apply, box)
