"""Augmentations of images: one file each, named after it, for `config.task.augmentations`.

A file's `make` takes the arguments of the recipe and, if its signature names them, the `resolution`
of the batch and the `mean` and `std` of its normalisation. An augmentation is a function of the
image and of random numbers drawn for that image and epoch alone, so a batch does not depend on the
host that makes it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Annotated, Generic, TypeVar

from t5x_like.quiet_tensorflow import tf
from t5x_like.slots import Condition

Image = TypeVar("Image")
Share = Annotated[float, Condition("a number from 0 to 1", lambda x: 0 <= x <= 1)]
Range = Annotated[
  tuple[float, ...],
  Condition("two numbers above 0, the smaller first", lambda x: len(x) == 2 and 0 < x[0] <= x[1]),
]


@dataclasses.dataclass(frozen=True)
class Augmentation(Generic[Image]):
  """A random change of an image; call it with the image and the random numbers drawn for it.

  Attributes:
    numbers: the number of random numbers that it takes.
    apply: (image, float32 [numbers] in [0, 1)) -> image. An image is float32 [Y, X, C], 0 to 255,
      of any size; in `contrib/detection` it also has boxes.
    box: (height and width int32 [2], float32 [numbers]) -> the crop with which an augmentation
      begins, int32 [4] (y, x, height, width). `apply` then takes the cropped image, so that only
      this part of a file need be decoded. None if there is no crop.
  """

  numbers: int
  apply: Callable[[Image, tf.Tensor], Image]
  box: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None

  def __call__(self, image: Image, u_N: tf.Tensor) -> Image:
    if self.box:
      image = crop_to_box(image, self.box(tf.shape(image)[:2], u_N))
    return self.apply(image, u_N)


def crop_to_box(image_YXC: tf.Tensor, box_4: tf.Tensor) -> tf.Tensor:
  """Crop an image to a box, int32 (y, x, height, width)."""
  channels = image_YXC.shape[-1]
  part = tf.slice(image_YXC, tf.pad(box_4[:2], [[0, 1]]), tf.concat([box_4[2:], [channels]], 0))
  return tf.ensure_shape(part, [None, None, channels])


def chain(steps: Sequence[Augmentation[Image]]) -> Augmentation[Image]:
  """Chain several augmentations, each with its own random numbers.

  If the first one crops, the chain has the same `box`.
  """
  # Each step takes the random numbers up to its end.
  ends = list(itertools.accumulate(step.numbers for step in steps))

  def apply(image: Image, u_N: tf.Tensor) -> Image:
    for i, (step, end) in enumerate(zip(steps, ends)):
      u_n = u_N[end - step.numbers : end]
      # The chain's `box` has cropped the image for the first step already.
      image = step.apply(image, u_n) if i == 0 else step(image, u_n)
    return image

  def first_box(size_2: tf.Tensor, u_N: tf.Tensor) -> tf.Tensor:
    return steps[0].box(size_2, u_N[: ends[0]])

  has_box = bool(steps) and steps[0].box is not None
  return Augmentation(sum(step.numbers for step in steps), apply, first_box if has_box else None)
