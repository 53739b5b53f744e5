"""Augmentations of images: one file each, named after it, for `config.task.augmentations`.

A file's `make` takes the arguments of the recipe and, if its signature names them, the `resolution` of the batch and
the `mean` and `std` of its normalisation. An augmentation is a function of the image and of random numbers drawn for
that image and epoch alone, so a batch does not depend on the host that makes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from t5x_like.data.quiet_tensorflow import tf

Image = TypeVar("Image")


@dataclasses.dataclass(frozen=True)
class Augmentation(Generic[Image]):
  """A random change of one image.

  Attributes:
    numbers: number of random numbers it takes.
    apply: (image, float32 [numbers] in [0, 1)) -> image. An image is float32 [Y, X, C] in 0 to 255, of any size, or
      one with boxes, see `data/box_augmentations`.
  """

  numbers: int
  apply: Callable[[Image, tf.Tensor], Image]


def chained(steps: Sequence[Augmentation[Image]]) -> Augmentation[Image]:
  """Chain several augmentations; each has its own random numbers."""

  def apply(image: Image, u_N: tf.Tensor) -> Image:
    start = 0
    for step in steps:
      image = step.apply(image, u_N[start : start + step.numbers])
      start += step.numbers
    return image

  return Augmentation(sum(step.numbers for step in steps), apply)
