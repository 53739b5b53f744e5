"""Images with some corrupted patches, for the masked patch prediction of ViT (Dosovitskiy et al.
2021, B.1.2).

  config.task = {"name": "corrupted_images", "source":
                 "folders:train=imagenet/train,validation=imagenet/val", "resolution": 224, "patch":
                 16, "rate": 0.5}

Features: as in `image_classification`, and for each patch, in raster order, `patch_sources` int32
  [T], the number of the patch that replaces it, or -1 for the mask; `patch_weights` float32 [T], 1
  if it was chosen to be corrupted; `patch_colours` int32 [T], its mean colour in 8 levels per
  channel, the last channel running fastest. Every evaluation has the same corruptions.
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

_LEVELS = 8  # 3 bits


# On the built-in corpus, for `:debug`.
BUILT_IN = {"source": "digits"}


def features(vocabulary, /, *, resolution: Resolution, channels: int, patch: int, **_) -> Features:
  """Return the features of the task with these arguments."""
  T = math.prod(side // patch for side in height_and_width(resolution))
  dtypes = {"patch_sources": "int32", "patch_weights": "float32", "patch_colours": "int32"}
  return layout.describe(resolution, channels) | {
    name: Feature((T,), dtype) for name, dtype in dtypes.items()
  }


def task(
  *,
  patch: PositiveInt = 16,
  rate: float = 0.5,
  masked: float = 0.8,
  swapped: float = 0.1,
  **images: Unpack[examples.LabelledImageArguments],
) -> Task:
  """Make the task.

  Args:
    patch: height and width of a patch, the model's.
    rate: share of corrupted patches; their number is the same in every image.
    masked, swapped: shares of the corrupted patches that become the mask, and another patch of the
      image; the others stay as they are.
    images: see `examples.Images`.

  Raises:
    UserError: no whole number of patches, or impossible shares; and as `image_classification`.
  """
  source = examples.LabelledImageArguments(**images)
  resolution, channels, (Y, X) = (
    source.resolution,
    source.channels,
    height_and_width(source.resolution),
  )
  T = Y // patch * (X // patch)
  corrupted = round(T * rate)
  if (
    Y % patch
    or X % patch
    or not 0 < corrupted <= T
    or min(masked, swapped) < 0
    or masked + swapped > 1
  ):
    found = (
      f"found resolution {resolution}, patch {patch}, rate {rate}, masked {masked} and "
      f"swapped {swapped}"
    )
    raise UserError(
      f"config.task: {found}, expected a multiple of the patch, a rate above 0 to 1, and shares "
      "of at most 1"
    )
  whole = examples.build_task(source)
  places_T = np.arange(T, dtype=np.int32)
  mean_C, std_C = (
    tf.constant(examples.per_channel("", x, channels), tf.float32)
    for x in (source.mean, source.std)
  )
  base_C = tf.constant(_LEVELS ** np.arange(channels)[::-1], tf.int32)

  def colours(image_BYXC: tf.Tensor) -> tf.Tensor:
    pixels = tf.reshape(
      image_BYXC * std_C + mean_C, [-1, Y // patch, patch, X // patch, patch, channels]
    )
    level_BTC = tf.reshape(tf.reduce_mean(pixels, [2, 4]), [-1, T, channels]) * _LEVELS
    return tf.reduce_sum(
      tf.clip_by_value(tf.cast(level_BTC, tf.int32), 0, _LEVELS - 1) * base_C, -1
    )

  def corruption(
    found: dict[str, tf.Tensor], draws: examples.RandomDraws, training: bool
  ) -> dict[str, tf.Tensor]:
    chosen_BK = random.subsets(draws.bits(examples.FIRST_TASK_STREAM, T), corrupted)
    chosen_BT = tf.reduce_any(chosen_BK[:, :, None] == places_T, axis=1)
    fate_BT = draws.uniform(examples.FIRST_TASK_STREAM + 1, T)
    away_BT = random.integers(draws.bits(examples.FIRST_TASK_STREAM + 2, T), max(T - 1, 1))
    other_BT = (places_T + 1 + tf.cast(away_BT, tf.int32)) % T
    source_BT = tf.where(
      fate_BT < masked, -1, tf.where(fate_BT < masked + swapped, other_BT, places_T)
    )
    return {
      "patch_sources": tf.where(chosen_BT, source_BT, places_T),
      "patch_weights": tf.cast(chosen_BT, tf.float32),
      "patch_colours": colours(found["image"]),
    }

  described = features(None, resolution=resolution, channels=channels, patch=patch)
  own = dict(patch=patch, rate=rate, masked=masked, swapped=swapped)
  return examples.extend_task("corrupted_images.v1", source, whole, described, corruption, **own)
