"""Mixup and CutMix: mix an image and its label with another image and its label.

The other image is the neighbour in the epoch's order: positions 0 and 1 are mixed with each other,
2 and 3, and so on. It is augmented in the same way as in its own row. A row therefore depends on
its own index alone, on any host. If batches hold whole pairs, the other image is in the same batch,
and is decoded once for both rows.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import special

from t5x_like.data import random
from t5x_like.data.augmentations import Share, crop_to_box
from t5x_like.quiet_tensorflow import tf
from t5x_like.slots import NonNegativeFloat

NUM_DRAWS = 5  # random numbers of a row
_TABLE_SIZE = 4096  # steps of the table of a quantile function


@dataclasses.dataclass(frozen=True)
class Mixing:
  """The mixing of images. An alpha of 0 turns its method off.

  Attributes:
    mixup: alpha of the Beta distribution of mixup's share (Zhang et al. 2018; DeiT takes 0.8).
    cutmix: alpha of the Beta distribution of CutMix's share (Yun et al. 2019; DeiT takes 1.0).
    probability: probability of mixing an image at all.
    switch: probability of CutMix where both are on.
  """

  mixup: NonNegativeFloat = 0.0
  cutmix: NonNegativeFloat = 0.0
  probability: Share = 1.0
  switch: Share = 0.5

  def is_mixed(self, u_BN: tf.Tensor) -> tf.Tensor:
    """Return whether images are mixed, bool [B].

    Args:
      u_BN: random numbers of the images, float32 [B, NUM_DRAWS] in [0, 1).
    """
    return u_BN[..., 0] < self.probability

  def __call__(
    self, image_YXC: tf.Tensor, other_YXC: tf.Tensor, u_N: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Return (the mixed image, the share of the first in it).

    It is the first image, with a share of 1, if the random numbers do not call for mixing.
    """
    if self.mixup and self.cutmix:
      cutmix_probability = self.switch
    else:
      cutmix_probability = 1.0 if self.cutmix > 0 else 0.0
    uses_cutmix = self.is_mixed(u_N) & (u_N[1] < cutmix_probability)
    method = tf.where(uses_cutmix, 2, tf.cast(self.is_mixed(u_N), tf.int32))
    branches = (
      lambda: (image_YXC, tf.constant(1.0)),
      lambda: self._mixup(image_YXC, other_YXC, u_N),
      lambda: self._cutmix(image_YXC, other_YXC, u_N),
    )
    return tf.switch_case(method, branches)

  def _mixup(
    self, image_YXC: tf.Tensor, other_YXC: tf.Tensor, u_N: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    share = _beta(self.mixup, u_N[2])
    return other_YXC + share * (image_YXC - other_YXC), share

  def _cutmix(
    self, image_YXC: tf.Tensor, other_YXC: tf.Tensor, u_N: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Replace a box around a random middle, cut off at the border, with the other image's pixels.

    The share of the first image is the area outside the box.
    """
    size_2 = tf.shape(image_YXC)[:2]
    sides_2 = tf.cast(size_2, tf.float32)
    cut_2 = tf.sqrt(1.0 - _beta(self.cutmix, u_N[2])) * sides_2
    start_2 = tf.floor(u_N[3:5] * sides_2 - cut_2 / 2)
    low_2 = tf.maximum(start_2, 0.0)
    # At least `low`, also for a box that rounds to nothing at a border.
    high_2 = tf.clip_by_value(start_2 + tf.round(cut_2), low_2, sides_2)
    box_4 = tf.cast(tf.concat([low_2, high_2 - low_2], 0), tf.int32)
    y, x, h, w = tf.unstack(box_4)
    rows_HXC = image_YXC[y : y + h]
    mixed_HXC = tf.concat([rows_HXC[:, :x], crop_to_box(other_YXC, box_4), rows_HXC[:, x + w :]], 1)
    mixed_YXC = tf.concat([image_YXC[:y], mixed_HXC, image_YXC[y + h :]], 0)
    box_share = tf.reduce_prod((high_2 - low_2) / sides_2)
    return tf.ensure_shape(mixed_YXC, image_YXC.shape), 1.0 - box_share


def find_partners(index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int, size: int) -> tf.Tensor:
  """Return the neighbour of each example in its epoch's order of range(size), int64 [B].

  In an odd number of examples, the neighbour of the last is the one before it. A single example is
  its own neighbour.
  """
  key_B = random.row_keys(seed, epoch_B)
  position_B = random.permute(index_B, key_B, size, inverse=True)
  other_B = tf.bitwise.bitwise_xor(position_B, tf.constant(1, tf.int64))
  other_B = tf.where(other_B < size, other_B, tf.maximum(position_B - 1, 0))
  return random.permute(other_B, key_B, size)


def _beta(alpha: float, u: tf.Tensor) -> tf.Tensor:
  """Draw from Beta(alpha, alpha) by its quantile function, interpolated; an alpha of 0 gives 1."""
  if not alpha:
    return tf.ones_like(u)
  quantiles = special.betaincinv(alpha, alpha, np.linspace(0, 1, _TABLE_SIZE + 1))
  table = tf.constant(quantiles, tf.float32)
  position = tf.cast(u * _TABLE_SIZE, tf.int32)
  low = tf.gather(table, position)
  high = tf.gather(table, position + 1)
  return low + (u * _TABLE_SIZE - tf.cast(position, tf.float32)) * (high - low)
