"""Training batches of padded images that are cut to few heights and widths.

Images of a detector, padded to `resolution`, are cut to the fewest shares of the height and of the
width that hold the largest of the batch, rounded up to a multiple of 32. Their padding is masked;
as in DETR's code, which pads to the largest too, the cells next to it see it through the
convolutions. `training/buckets.py` does the same for rows of texts.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from t5x_like.data.features import Features
from t5x_like.training.buckets import (
  BucketedStep,
  count_buckets,
  lengths,
  whole_rows_reason,
)
from t5x_like.training.build import Parts
from t5x_like.training.compilation import StepCost

_STRIDE = 32  # of a height or width: the stride of most backbones


@dataclasses.dataclass(frozen=True)
class ImageBuckets:
  """Images that are padded below and on the right; their shape is height and width."""

  features: Features
  buckets: int

  def shape(self, features: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of a batch, or of features."""
    return tuple(features["image"].shape[-3:-1])

  def cut_features(self, shape: tuple[int, ...]) -> Features:
    """Return the features of images of a shape."""
    image = self.features["image"]
    return self.features | {"image": dataclasses.replace(image, shape=(*shape, *image.shape[-1:]))}

  def cut(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Cut the padding of images to the least shares that hold the largest image.

    Args:
      batch: images, and their `image_size` [B, 2].
    """
    sides = []
    for side, used in zip(self.shape(self.features), batch["image_size"].max(axis=0)):
      shares = lengths(side, self.buckets, _STRIDE)
      sides.append(next(share for share in shares if share >= used))
    height, width = sides
    return batch | {"image": batch["image"][:, :height, :width]}

  def describe(self, shape: tuple[int, ...]) -> str:
    return f"images of {' x '.join(map(str, shape))} pixels"


def whole_images_reason(model) -> str | None:
  """Return why a model must have whole images; None if it need not.

  The padding of a batch must not reach distant cells, as it does in a backbone with group norm, or
  in one for images of one size.
  """
  backbone = getattr(model, "backbone", None)
  if getattr(backbone, "local", False):
    return whole_rows_reason(model)
  return f"in the backbone {type(backbone).__name__}, cells far from the padding depend on it"


def build_buckets(model, task) -> ImageBuckets:
  """Return the buckets by which a model's batches of a task are cut."""
  return ImageBuckets(task.features, count_buckets(task, whole_images_reason(model)))


def compile_run_step(config: ConfigDict, parts: Parts, task) -> tuple[BucketedStep, StepCost]:
  """Return the steps for batches of a task, and the cost of the largest images."""
  steps = BucketedStep(config, parts, task.features, build_buckets(parts.model, task))
  return steps, steps.longest_cost
