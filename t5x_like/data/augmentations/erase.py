"""Random erasing: a box of noise (Zhong et al. 2020, https://arxiv.org/abs/1708.04896)."""

from __future__ import annotations

from t5x_like.data.augmentations import Augmentation, _box
from t5x_like.data.quiet_tensorflow import tf


def make(
  mean: tuple,
  std: tuple,
  *,
  probability: float = 0.25,
  area: tuple[float, ...] = (0.02, 1 / 3),
  ratio: tuple[float, ...] = (0.3, 3.3),
) -> Augmentation:
  """Make the erasure; the noise has the images' mean and deviation.

  `area` is the range of the box's share of the image, `ratio` the range of its width over height.
  """

  def apply(image_YXC: tf.Tensor, u_N: tf.Tensor) -> tf.Tensor:
    shape = tf.shape(image_YXC)
    box_4, fitted = _box.box(u_N[1 : 1 + _box.NUMBERS], shape[0], shape[1], _box.pair(area), _box.pair(ratio))
    seed_2 = tf.cast(u_N[-2:] * 2.0**24, tf.int32)
    noise = 255.0 * (
      tf.constant(mean, tf.float32) + tf.random.stateless_normal(shape, seed_2) * tf.constant(std, tf.float32)
    )
    erased = _box.inside(box_4, shape[0], shape[1]) & fitted & (u_N[0] < probability)
    return tf.where(erased, noise, image_YXC)

  return Augmentation(1 + _box.NUMBERS + 2, apply)
