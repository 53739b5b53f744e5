"""Augmentations of images with boxes: one file each, named after it, for `config.task.augmentations` of detection.

As in `data/augmentations`, a change is a function of the image and of random numbers drawn for it and its epoch alone.
A file's `make` takes the arguments of the recipe and, if its signature names it, the `resolution` of the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from t5x_like.data.quiet_tensorflow import tf

Boxed = tuple["tf.Tensor", "tf.Tensor", "tf.Tensor"]


@dataclasses.dataclass(frozen=True)
class BoxAugmentation:
  """A random change of one image and its boxes.

  Attributes:
    numbers: number of random numbers it takes.
    apply: ((image float32 [Y, X, C] in 0 to 255, boxes float32 [M, 4] as shares of the image, bool [M] mask of real
      boxes), float32 [numbers] in [0, 1)) -> the same three for the changed image.
  """

  numbers: int
  apply: Callable[[Boxed, tf.Tensor], Boxed]


def together(steps: Sequence[BoxAugmentation]) -> BoxAugmentation:
  """Chain several augmentations; each has its own random numbers."""

  def apply(boxed: Boxed, u_N: tf.Tensor) -> Boxed:
    start = 0
    for step in steps:
      boxed = step.apply(boxed, u_N[start : start + step.numbers])
      start += step.numbers
    return boxed

  return BoxAugmentation(sum(step.numbers for step in steps), apply)
