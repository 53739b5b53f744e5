"""Random erasing: a box of noise (Zhong et al. 2020, https://arxiv.org/abs/1708.04896)."""

from __future__ import annotations

import numpy as np

from t5x_like.data.augmentations import Augmentation, Range, Share, _box, _pixels, crop_to_box
from t5x_like.quiet_tensorflow import tf


def make(
  mean: tuple,
  std: tuple,
  *,
  probability: Share = 0.25,
  area: Range = (0.02, 1 / 3),
  ratio: Range = (0.3, 1 / 0.3),
) -> Augmentation:
  """Build the augmentation, whose noise has the images' mean and deviation.

  Args:
    mean, std: mean and standard deviation of pixels from 0 to 1.
    probability: the probability of erasing a box.
    area: the range of the box's area, as a share of the image's.
    ratio: the range of the box's width over its height.
  """

  def erase(image_YXC: tf.Tensor, u_N: tf.Tensor) -> tf.Tensor:
    size_2 = tf.shape(image_YXC)[:2]
    box_4, fits = _box.draw_box(u_N[1 : 1 + _box.NUMBERS], size_2[0], size_2[1], area, ratio)
    box_4 *= tf.cast(fits, tf.int32)  # an empty box where none fits
    old = crop_to_box(image_YXC, box_4)
    noise = tf.random.stateless_normal(tf.shape(old), tf.cast(u_N[-2:] * 2.0**24, tf.int32))
    new = _pixels.linear(noise, 255.0 * np.array(std), 255.0 * np.array(mean))
    margins_22 = tf.stack([box_4[:2], size_2 - box_4[:2] - box_4[2:]], 1)
    return image_YXC + tf.pad(new - old, tf.pad(margins_22, [[0, 1], [0, 0]]))

  def apply(image_YXC: tf.Tensor, u_N: tf.Tensor) -> tf.Tensor:
    image = tf.cond(u_N[0] < probability, lambda: erase(image_YXC, u_N), lambda: image_YXC)
    return tf.ensure_shape(image, image_YXC.shape)

  return Augmentation(1 + _box.NUMBERS + 2, apply)
