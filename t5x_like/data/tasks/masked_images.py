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
  names = ("visible_patches", "masked_patches")
  shapes = zip(names, patches(resolution, patch, mask_ratio), strict=True)
  return layout.describe(resolution, channels) | {
    name: Feature((n,), "int32") for name, n in shapes
  }


def patches(resolution: Resolution, patch: int, mask_ratio: float) -> tuple[int, int]:
  """Return the numbers of visible and masked patches of an image."""
  whole = math.prod(side // patch for side in height_and_width(resolution))
  visible = int(whole * (1 - mask_ratio))
  return visible, whole - visible


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
    images: see `examples.Images`.

  Raises:
    UserError: no whole number of patches, or none left on one side; and as `image_classification`.
  """
  source = examples.LabelledImageArguments(augmentations=augmentations, **images)
  visible, masked = patches(source.resolution, patch, mask_ratio)
  if any(side % patch for side in height_and_width(source.resolution)) or not visible or not masked:
    found = f"found resolution {source.resolution}, patch {patch} and mask_ratio {mask_ratio}"
    raise UserError(
      f"config.task: {found}, expected a multiple of the patch, and patches both seen and masked"
    )
  places_T = np.arange(visible + masked, dtype=np.int32)

  def masks(
    found: dict[str, tf.Tensor], draws: examples.RandomDraws, training: bool
  ) -> dict[str, tf.Tensor]:
    seen_BK = random.subsets(draws.bits(examples.FIRST_TASK_STREAM, places_T.size), visible)
    hidden_BT = tf.reduce_all(seen_BK[:, :, None] != places_T, axis=1)
    hidden_BM = tf.reshape(
      tf.boolean_mask(tf.zeros_like(hidden_BT, tf.int32) + places_T, hidden_BT), [-1, masked]
    )
    return {"visible_patches": seen_BK, "masked_patches": hidden_BM}

  own = dict(patch=patch, mask_ratio=mask_ratio)
  described = features(None, resolution=source.resolution, channels=source.channels, **own)
  return examples.extend_task(
    "masked_images.v1", source, examples.build_task(source), described, masks, **own
  )
