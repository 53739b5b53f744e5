"""Augmentations of images: one file each, named after it, for `config.task.augmentations`.

A file's `make` takes the arguments of the recipe and, if its signature names them, the `resolution` of the batch and
the `mean` and `std` of its normalisation. An augmentation is a function of the image and of random numbers drawn for
that image and epoch alone, so a batch does not depend on the host that makes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from t5x_like.data.quiet_tensorflow import tf


@dataclasses.dataclass(frozen=True)
class Augmentation:
  """A random change of one image.

  Attributes:
    numbers: number of random numbers it takes.
    apply: (float32 [Y, X, C] in 0 to 255, float32 [numbers] in [0, 1)) -> float32 [Y', X', C].
  """

  numbers: int
  apply: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def together(steps: Sequence[Augmentation]) -> Augmentation:
  """Chain several augmentations; each has its own random numbers."""

  def apply(image_YXC: tf.Tensor, u_N: tf.Tensor) -> tf.Tensor:
    start = 0
    for step in steps:
      image_YXC = step.apply(image_YXC, u_N[start : start + step.numbers])
      start += step.numbers
    return image_YXC

  return Augmentation(sum(step.numbers for step in steps), apply)
