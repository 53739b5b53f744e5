"""Images whose encoder sees a random part of the patches, for masked autoencoders (He et al. 2022).

  config.task = {"name": "masked_images", "source": "folders:train=imagenet/train,validation=imagenet/val",
                 "resolution": 224, "patch": 16, "mask_ratio": 0.75}

Features: as in `image_classification`, with `visible_patches` int32 [K] and `masked_patches` int32 [M], numbers of
patches in raster order, drawn anew for every image and epoch. Every evaluation has the same masks.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, Unpack

import numpy as np

from t5x_like.data import features as declared
from t5x_like.data import random
from t5x_like.data.features import Feature, Features
from t5x_like.data.images import examples
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.task import Task, digest
from t5x_like.errors import UserError
from t5x_like.slots import Positive

# On the built-in corpus, for `:debug`.
BUILT_IN = {"source": "digits"}


def features(vocabulary, /, *, resolution: int, channels: int, patch: int, mask_ratio: float, **_) -> Features:
  """Return the features of the task with these arguments."""
  names = ("visible_patches", "masked_patches")
  shapes = zip(names, patches(resolution, patch, mask_ratio), strict=True)
  return declared.images(resolution, channels) | {name: Feature((n,), "int32") for name, n in shapes}


def patches(resolution: int, patch: int, mask_ratio: float) -> tuple[int, int]:
  """Return the numbers of visible and masked patches of an image."""
  whole = (resolution // patch) ** 2
  visible = int(whole * (1 - mask_ratio))
  return visible, whole - visible


def task(
  *,
  resolution: Positive = 224,
  channels: Literal[1, 3] = 3,
  patch: Positive = 16,
  mask_ratio: float = 0.75,
  augmentations: tuple = ({"name": "random_resized_crop", "area": (0.2, 1.0)}, "flip"),
  label: str | None = None,
  **images: Unpack[examples.Images],
) -> Task:
  """Make the task.

  Args:
    patch: height and width of a patch, the model's.
    mask_ratio: share of the patches that are masked; the number of visible patches is rounded down.
    images: see `examples.Images`.

  Raises:
    UserError: no whole number of patches, or none left on one side; and as `image_classification`.
  """
  visible, masked = patches(resolution, patch, mask_ratio)
  if resolution % patch or not visible or not masked:
    found = f"found resolution {resolution}, patch {patch} and mask_ratio {mask_ratio}"
    raise UserError(f"config.task: {found}, expected a multiple of the patch, and patches both seen and masked")
  plain = examples.task(
    examples.Images(resolution=resolution, channels=channels, augmentations=augmentations, label=label, **images)
  )
  places_T = np.arange(visible + masked, dtype=np.int32)

  def with_masks(batch):
    def made(index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
      key_B = random.row_keys(seed, epoch_B, index_B, tf.constant(examples.MORE, tf.int64))
      seen_BK = random.subsets(random.bits(key_B, places_T.size), visible)
      hidden_BT = tf.reduce_all(seen_BK[:, :, None] != places_T, axis=1)
      hidden_BM = tf.reshape(tf.boolean_mask(tf.zeros_like(hidden_BT, tf.int32) + places_T, hidden_BT), [-1, masked])
      return batch(index_B, epoch_B, seed) | {"visible_patches": seen_BK, "masked_patches": hidden_BM}

    return made

  return dataclasses.replace(
    plain,
    name=label or plain.name.replace("image_classification", "masked_images"),
    fingerprint=digest(task="masked_images.v1", images=plain.fingerprint, patch=patch, mask_ratio=mask_ratio),
    features=features(None, resolution=resolution, channels=channels, patch=patch, mask_ratio=mask_ratio),
    batch=with_masks(plain.batch),
    evaluated=with_masks(plain.evaluated),
  )
