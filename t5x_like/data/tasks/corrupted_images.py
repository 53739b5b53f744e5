"""Images with some corrupted patches, for the masked patch prediction of ViT.

Dosovitskiy et al. 2021, appendix B.1.2.

  config.task = {"name": "corrupted_images", "source":
                 "folders:train=imagenet/train,validation=imagenet/val", "resolution": 224, "patch":
                 16, "rate": 0.5}

Features: as in `image_classification`, and for each patch, in raster order, `patch_sources` int32
  [T], the number of the patch that replaces it, or -1 for the mask; `patch_weights` float32 [T], 1
  if it was chosen to be corrupted; `patch_colours` int32 [T], its mean colour in 8 levels per
  channel, the last channel running fastest. Every evaluation has the same corruptions.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from t5x_like.data import random
from t5x_like.data.features import Feature, Features
from t5x_like.data.images import examples, layout
from t5x_like.data.task import Task
from t5x_like.errors import UserError
from t5x_like.quiet_tensorflow import tf
from t5x_like.resolution import height_and_width
from t5x_like.slots import PositiveInt
from t5x_like.vocabularies import Vocabulary

_LEVELS = 8  # 3 bits

# The arguments of the task on built-in images, for `:debug`.
BUILT_IN = {"source": "digits"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(examples.LabelledImageArguments):
  """The arguments of corrupted images.

  Attributes:
    patch: height and width of a patch, as in the model.
    rate: share of corrupted patches; their number is the same in every image.
    masked, swapped: shares of the corrupted patches that become the mask, and another patch of the
      image; the others stay as they are.
  """

  patch: PositiveInt = 16
  rate: float = 0.5
  masked: float = 0.8
  swapped: float = 0.1

  def features(self, vocabulary: Vocabulary) -> Features:
    T = math.prod(side // self.patch for side in height_and_width(self.resolution))
    features = layout.describe(self.resolution, self.channels)
    features["patch_sources"] = Feature((T,), "int32")
    features["patch_weights"] = Feature((T,), "float32")
    features["patch_colours"] = Feature((T,), "int32")
    return features

  def build(self) -> Task:
    """Prepare the images and return the task.

    Raises:
      UserError: no whole number of patches, or impossible shares; and as `image_classification`.
    """
    patch = self.patch
    Y, X = height_and_width(self.resolution)
    T = (Y // patch) * (X // patch)
    num_corrupted = round(T * self.rate)
    has_whole_patches = Y % patch == 0 and X % patch == 0
    has_shares = min(self.masked, self.swapped) >= 0 and self.masked + self.swapped <= 1
    if not has_whole_patches or not has_shares or not 0 < num_corrupted <= T:
      raise UserError(
        f"config.task: found resolution {self.resolution}, patch {patch}, rate {self.rate}, masked "
        f"{self.masked} and swapped {self.swapped}, expected a multiple of the patch, a rate above "
        "0 to 1, and shares of at most 1"
      )
    positions_T = np.arange(T, dtype=np.int32)
    mean_C = tf.constant(examples.per_channel("", self.mean, self.channels), tf.float32)
    std_C = tf.constant(examples.per_channel("", self.std, self.channels), tf.float32)

    def corrupt(
      values: dict[str, tf.Tensor], draws: examples.RandomDraws, training: bool
    ) -> dict[str, tf.Tensor]:
      chosen_BK = random.subsets(draws.bits(examples.FIRST_TASK_STREAM, T), num_corrupted)
      chosen_BT = tf.reduce_any(chosen_BK[:, :, None] == positions_T, axis=1)
      fate_BT = draws.uniform(examples.FIRST_TASK_STREAM + 1, T)
      distance_bits_BT = draws.bits(examples.FIRST_TASK_STREAM + 2, T)
      distance_BT = random.integers(distance_bits_BT, max(T - 1, 1))
      other_BT = (positions_T + 1 + tf.cast(distance_BT, tf.int32)) % T
      unmasked_BT = tf.where(fate_BT < self.masked + self.swapped, other_BT, positions_T)
      source_BT = tf.where(fate_BT < self.masked, -1, unmasked_BT)
      return {
        "patch_sources": tf.where(chosen_BT, source_BT, positions_T),
        "patch_weights": tf.cast(chosen_BT, tf.float32),
        "patch_colours": _mean_colours(values["image"] * std_C + mean_C, patch),
      }

    return self.build_images("corrupted_images.v1", self.open_images(), make_extra=corrupt)


def _mean_colours(image_BYXC: tf.Tensor, patch: int) -> tf.Tensor:
  """Return the number of each patch's mean colour, int32 [B, T], from pixels in 0 to 1."""
  _, Y, X, C = image_BYXC.shape
  rows = Y // patch
  columns = X // patch
  pixels = tf.reshape(image_BYXC, [-1, rows, patch, columns, patch, C])
  means_BTC = tf.reshape(tf.reduce_mean(pixels, [2, 4]), [-1, rows * columns, C])
  level_BTC = tf.clip_by_value(tf.cast(means_BTC * _LEVELS, tf.int32), 0, _LEVELS - 1)
  base_C = tf.constant(_LEVELS ** np.arange(C)[::-1], tf.int32)
  return tf.reduce_sum(level_BTC * base_C, -1)
