"""Images whose encoder sees a random part of the patches, for masked autoencoders (He et al. 2022).

  config.task = {"name": "masked_images", "source":
                 "folders:train=imagenet/train,validation=imagenet/val", "resolution": 224, "patch":
                 16, "mask_ratio": 0.75}

Features: as in `image_classification`, with `visible_patches` int32 [K] and `masked_patches` int32
  [M], numbers of patches in raster order, drawn anew for every image and epoch. Every evaluation
  has the same masks.
"""

from __future__ import annotations

import math
from typing import Unpack

import numpy as np

from t5x_like.data import random
from t5x_like.data.features import Feature, Features
from t5x_like.data.images import examples, layout
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.task import Task
from t5x_like.errors import UserError
from t5x_like.resolution import Resolution, height_and_width
from t5x_like.slots import PositiveInt

# On the built-in corpus, for `:debug`.
BUILT_IN = {"source": "digits"}


def features(
  vocabulary, /, *, resolution: Resolution, channels: int, patch: int, mask_ratio: float, **_
) -> Features:
  """Return the features of the task with these arguments."""
  num_visible, num_masked = count_patches(resolution, patch, mask_ratio)
  described = layout.describe(resolution, channels)
  described["visible_patches"] = Feature((num_visible,), "int32")
  described["masked_patches"] = Feature((num_masked,), "int32")
  return described


def count_patches(resolution: Resolution, patch: int, mask_ratio: float) -> tuple[int, int]:
  """Return the numbers of visible and masked patches of an image."""
  total = math.prod(side // patch for side in height_and_width(resolution))
  visible = int(total * (1 - mask_ratio))
  return visible, total - visible


def task(
  *,
  patch: PositiveInt = 16,
  mask_ratio: float = 0.75,
  augmentations: tuple = ({"name": "random_resized_crop", "area": (0.2, 1.0)}, "flip"),
  **images: Unpack[examples.LabelledImageArguments],
) -> Task:
  """Make the task.

  Args:
    patch: height and width of a patch, the model's.
    mask_ratio: share of the patches that are masked; the number of visible patches is rounded down.
    images: see `examples.LabelledImageArguments`.

  Raises:
    UserError: no whole number of patches, or none left on one side; and as `image_classification`.
  """
  source = examples.LabelledImageArguments(augmentations=augmentations, **images)
  num_visible, num_masked = count_patches(source.resolution, patch, mask_ratio)
  has_whole_patches = not any(side % patch for side in height_and_width(source.resolution))
  if not has_whole_patches or not num_visible or not num_masked:
    raise UserError(
      f"config.task: found resolution {source.resolution}, patch {patch} and mask_ratio "
      f"{mask_ratio}, expected a multiple of the patch, and patches both seen and masked"
    )
  places_T = np.arange(num_visible + num_masked, dtype=np.int32)

  def draw_masks(
    values: dict[str, tf.Tensor], draws: examples.RandomDraws, training: bool
  ) -> dict[str, tf.Tensor]:
    bits_BT = draws.bits(examples.FIRST_TASK_STREAM, places_T.size)
    visible_BK = random.subsets(bits_BT, num_visible)
    is_masked_BT = tf.reduce_all(visible_BK[:, :, None] != places_T, axis=1)
    places_BT = tf.zeros_like(is_masked_BT, tf.int32) + places_T
    masked_BM = tf.reshape(tf.boolean_mask(places_BT, is_masked_BT), [-1, num_masked])
    return {"visible_patches": visible_BK, "masked_patches": masked_BM}

  facts = {"patch": patch, "mask_ratio": mask_ratio}
  described = features(None, resolution=source.resolution, channels=source.channels, **facts)
  base = examples.build_task(source)
  return examples.extend_task("masked_images.v1", source, base, described, draw_masks, **facts)
