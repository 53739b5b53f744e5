"""Mixup and CutMix: an image and its label, mixed with another's.

The other image is drawn from the whole corpus, for the example and its epoch, not from the batch. So a row of a batch
depends on its own index alone, on any host.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import special

from t5x_like.data.augmentations import _box
from t5x_like.data.quiet_tensorflow import tf

NUMBERS = 5
_TABLE = 4096


@dataclasses.dataclass(frozen=True)
class Mixing:
  """The mixing of images. An alpha of 0 turns its method off.

  Attributes:
    mixup: alpha of the Beta distribution of mixup's share (Zhang et al. 2018; DeiT takes 0.8).
    cutmix: alpha of the Beta distribution of CutMix's share (Yun et al. 2019; DeiT takes 1.0).
    probability: probability of mixing an image at all.
    switch: probability of CutMix where both are on.
  """

  mixup: float = 0.0
  cutmix: float = 0.0
  probability: float = 1.0
  switch: float = 0.5

  def wanted(self, u_BN: tf.Tensor) -> tf.Tensor:
    """Return whether images are mixed, bool [B], from their random numbers, float32 [B, NUMBERS] in [0, 1)."""
    return u_BN[..., 0] < self.probability

  def __call__(self, image_YXC: tf.Tensor, other_YXC: tf.Tensor, u_N: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return (the mixed image, the share of the first in it); the first image alone if no mixing is wanted."""
    cuts = u_N[1] < (self.switch if self.mixup and self.cutmix else float(self.cutmix > 0))
    share = tf.where(cuts, _beta(self.cutmix, u_N[2]), _beta(self.mixup, u_N[2]))
    shape = tf.shape(image_YXC)
    Y, X = tf.cast(shape[0], tf.float32), tf.cast(shape[1], tf.float32)
    side = tf.sqrt(1.0 - share)
    # A box around a random middle, cut off at the border; the share is the rest of the image.
    y0, x0 = tf.floor(u_N[3] * Y - side * Y / 2), tf.floor(u_N[4] * X - side * X / 2)
    y1, x1 = y0 + tf.round(side * Y), x0 + tf.round(side * X)
    y0, x0, y1, x1 = tf.maximum(y0, 0.0), tf.maximum(x0, 0.0), tf.minimum(y1, Y), tf.minimum(x1, X)
    box_4 = tf.cast(tf.stack([y0, x0, y1 - y0, x1 - x0]), tf.int32)
    cut = tf.where(_box.inside(box_4, shape[0], shape[1]), other_YXC, image_YXC)
    left = 1.0 - (y1 - y0) * (x1 - x0) / (Y * X)
    mixed = tf.where(cuts, cut, share * image_YXC + (1.0 - share) * other_YXC)
    wanted = self.wanted(u_N)
    return tf.where(wanted, mixed, image_YXC), tf.where(wanted, tf.where(cuts, left, share), 1.0)


def _beta(alpha: float, u: tf.Tensor) -> tf.Tensor:
  """Draw from Beta(alpha, alpha) by its quantile function."""
  if not alpha:
    return tf.ones_like(u)
  table = tf.constant(special.betaincinv(alpha, alpha, np.linspace(0, 1, _TABLE + 1)), tf.float32)
  place = tf.cast(u * _TABLE, tf.int32)
  low, high = tf.gather(table, place), tf.gather(table, place + 1)
  return low + (u * _TABLE - tf.cast(place, tf.float32)) * (high - low)
