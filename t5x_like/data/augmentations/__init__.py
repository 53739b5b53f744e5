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
  """A random change of one image, made by calling it with the image and its random numbers.

  Attributes:
    numbers: number of random numbers it takes.
    apply: (image, float32 [numbers] in [0, 1)) -> image. An image is float32 [Y, X, C] in 0 to 255,
      of any size, or one with boxes, see `contrib/detection`.
    box: for a change of a part of the image alone, (height and width int32 [2], float32 [numbers])
      -> int32 [4], the part's y, x, height and width. `apply` takes the part, so no more than the
      part of a file need be decoded.
  """

  numbers: int
  apply: Callable[[Image, tf.Tensor], Image]
  box: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None

  def __call__(self, image: Image, u_N: tf.Tensor) -> Image:
    if self.box:
      image = crop_to_box(image, self.box(tf.shape(image)[:2], u_N))
    return self.apply(image, u_N)


def crop_to_box(image_YXC: tf.Tensor, box_4: tf.Tensor) -> tf.Tensor:
  """Return the part of an image at int32 (y, x, height, width)."""
  channels = image_YXC.shape[-1]
  part = tf.slice(image_YXC, tf.pad(box_4[:2], [[0, 1]]), tf.concat([box_4[2:], [channels]], 0))
  return tf.ensure_shape(part, [None, None, channels])


def chain(steps: Sequence[Augmentation[Image]]) -> Augmentation[Image]:
  """Chain several augmentations, each with its own random numbers.

  If the first changes only a part of the image, the chain's `box` is the same part.
  """
  ends = list(itertools.accumulate(step.numbers for step in steps))

  def apply(image: Image, u_N: tf.Tensor) -> Image:
    for number, (step, end) in enumerate(zip(steps, ends)):
      # The image of the first step is already its box.
      function = step.apply if number == 0 else step
      image = function(image, u_N[end - step.numbers : end])
    return image

  def first_box(size_2: tf.Tensor, u_N: tf.Tensor) -> tf.Tensor:
    return steps[0].box(size_2, u_N[: ends[0]])

  has_box = bool(steps) and steps[0].box is not None
  return Augmentation(sum(step.numbers for step in steps), apply, first_box if has_box else None)
