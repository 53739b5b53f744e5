"""Images whose encoder sees a random part of the patches, for masked autoencoders (He et al. 2022).

  config.task = {
      "name": "masked_images",
      "source": "folders:train=imagenet/train,validation=imagenet/val",
      "resolution": 224,
      "patch": 16,
      "mask_ratio": 0.75,
  }

Features: as in `image_classification`, with `visible_patches` int32 [K] and `masked_patches` int32
  [M], the indices of patches in raster order, drawn for every image and epoch. Every
  evaluation has the same masks.
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
from t5x_like.resolution import Resolution, height_and_width
from t5x_like.slots import PositiveInt
from t5x_like.vocabularies import Vocabulary

# The arguments of the task on built-in images, for `:debug`.
BUILT_IN = {"source": "digits"}


def count_patches(resolution: Resolution, patch: int, mask_ratio: float) -> tuple[int, int]:
  """Return the numbers of visible and masked patches of an image."""
  total = math.prod(side // patch for side in height_and_width(resolution))
  visible = int(total * (1 - mask_ratio))
  return visible, total - visible


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(examples.LabelledImageArguments):
  """The arguments of masked images.

  Attributes:
    patch: height and width of a patch, as in the model.
    mask_ratio: share of the patches that are masked; the number of visible patches is rounded down.
  """

  patch: PositiveInt = 16
  mask_ratio: float = 0.75
  augmentations: tuple = ({"name": "random_resized_crop", "area": (0.2, 1.0)}, "flip")

  def features(self, vocabulary: Vocabulary) -> Features:
    num_visible, num_masked = count_patches(self.resolution, self.patch, self.mask_ratio)
    features = layout.describe(self.resolution, self.channels)
    features["visible_patches"] = Feature((num_visible,), "int32")
    features["masked_patches"] = Feature((num_masked,), "int32")
    return features

  def build(self) -> Task:
    """Prepare the images and return the task.

    Raises:
      UserError: the patches do not tile the image, none is visible or none is masked; also the
        errors of `image_classification`.
    """
    num_visible, num_masked = count_patches(self.resolution, self.patch, self.mask_ratio)
    has_whole_patches = not any(side % self.patch for side in height_and_width(self.resolution))
    if not has_whole_patches or not num_visible or not num_masked:
      raise UserError(
        f"config.task: found resolution {self.resolution}, patch {self.patch} and mask_ratio "
        f"{self.mask_ratio}, expected a resolution that is a multiple of the patch, "
        "and at least one visible and one masked patch"
      )
    patch_T = np.arange(num_visible + num_masked, dtype=np.int32)

    def draw_masks(
      values: dict[str, tf.Tensor], draws: examples.RandomDraws, training: bool
    ) -> dict[str, tf.Tensor]:
      bits_BT = draws.bits(examples.FIRST_TASK_STREAM, patch_T.size)
      visible_BK = random.subsets(bits_BT, num_visible)
      is_masked_BT = tf.reduce_all(visible_BK[:, :, None] != patch_T, axis=1)
      patch_BT = tf.zeros_like(is_masked_BT, tf.int32) + patch_T
      masked_BM = tf.reshape(tf.boolean_mask(patch_BT, is_masked_BT), [-1, num_masked])
      return {"visible_patches": visible_BK, "masked_patches": masked_BM}

    return self.build_images("masked_images.v1", self.open_images(), make_extra=draw_masks)
