"""The examples of tasks on labelled images: read, augmented, mixed and normalised, each a function
of its index."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from t5x_like import slots
from t5x_like.data import augmentations as available
from t5x_like.data import random
from t5x_like.data.augmentations import Augmentation, _pixels, _resize, chained, cut
from t5x_like.data.features import Features
from t5x_like.data.images import described as declared
from t5x_like.data.images import pictures
from t5x_like.data.images import store as stores
from t5x_like.data.images.mixing import NUMBERS, Mixing, partners
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.source import Source
from t5x_like.data.task import Task, digest
from t5x_like.errors import UserError
from t5x_like.resolution import Resolution, height_and_width
from t5x_like.slots import PositiveInt, to_plain
from t5x_like.vocabularies.kinds.labels import LabelVocabulary

# streams of random numbers of an example: its image and the mixing
_OWN = 0
_MIXED = 1
MORE = 2  # the first stream free for tasks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen(Source):
  """The arguments that tasks on single images share.

  Attributes:
    resolution: height and width of the images in a batch; one number for squares.
    channels: 3 for RGB, 1 for grey; images of the other kind are converted.
    augmentations: of training images, in order: modules of `data/augmentations`, names or {"name":
      …} with arguments. An image of another size after them is resized like the images of
      evaluations.
    repeats: copies of each image per epoch, one after the other, each augmented independently
      (Hoffer et al. 2020; DeiT takes 3); every batch holds them together if its size is a multiple.
    crop: evaluations resize images to cover resolution / crop, and see the middle.
    fit: the way of an image to the resolution in evaluations and, where augmentations leave another
      size, in training: its middle is "cut" out; or the whole is "padded" with the mean, which
      keeps its aspect ratio too, or "squeezed", which "squeezed_cut" does before it cuts out the
      middle.
    method: the interpolation of this resizing.
    mean, std: mean and deviation for normalising pixels in 0 to 1, one number or one per channel.
    image_field: the field of the encoded image.
  """

  resolution: Resolution = 224
  channels: Literal[1, 3] = 3
  augmentations: tuple = ("random_resized_crop", "flip")
  repeats: PositiveInt = 1
  crop: float = pictures.CROP
  fit: pictures.Fit = "cut"
  method: pictures.Method = "bicubic"
  mean: tuple[float, ...] = pictures.MEAN
  std: tuple[float, ...] = pictures.STD
  image_field: str = "image"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images(Seen):
  """The arguments that tasks on labelled images share; sources are `folders:`, `webdataset:`,
  `idx:`, `tfds:` and `digits`, and without labels those of boxes too.

  Attributes:
    label_field: the field of the label; None where images have none, for tasks that learn from
      images alone.
    classes: the names of the classes, in the order of their numbers; by default the source's. For
      images of some of the classes of a run.
  """

  label_field: str | None = "label"
  classes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Draws:
  """The random numbers of examples in their epochs, in independent streams; tasks use the streams
  from `MORE` on."""

  seed: int
  epoch_B: tf.Tensor
  index_B: tf.Tensor

  def bits(self, stream: int, n: int, *words: int) -> tf.Tensor:
    """Return random words, uint32 [B, n]."""
    words_B = (tf.constant(word, tf.int64) for word in (stream, *words))
    return random.bits(random.row_keys(self.seed, self.epoch_B, self.index_B, *words_B), n)

  def uniform(self, stream: int, n: int) -> tf.Tensor:
    """Return numbers in [0, 1), float32 [B, n], of 24 bits each."""
    return (
      tf.cast(tf.bitwise.right_shift(self.bits(stream, n), tf.constant(8, tf.uint32)), tf.float32)
      * 2.0**-24
    )


class Pixels:
  """The pixels of a store's images.

  Args:
    store: the images.
    channels: 3 for RGB, 1 for grey.
    mean, std: mean and deviation for normalisation, one number or one per channel.

  Raises:
    UserError: another number of means or deviations.
  """

  def __init__(self, store: stores.ImageStore, channels: int, mean: tuple, std: tuple):
    self._store = store
    self._channels = channels
    self.mean, self.std = (
      of_channels(name, x, channels) for name, x in (("mean", mean), ("std", std))
    )

  def read(self, index_B: tf.Tensor) -> tf.Tensor:
    """Return the encoded images of some indices, string [B]."""
    found_B = tf.numpy_function(self._store.read, [index_B], tf.string, stateful=False)
    return tf.ensure_shape(found_B, index_B.shape)

  def decoded(
    self, data: tf.Tensor, box: Callable[[tf.Tensor], tf.Tensor] | None = None
  ) -> tf.Tensor:
    """Decode an image, or only the box that `box` makes of its height and width: float32 [Y, X, C]
    in 0 to 255."""

    def other() -> tf.Tensor:
      image = tf.io.decode_image(data, self._channels, expand_animations=False)
      image = tf.ensure_shape(image, [None, None, self._channels])
      return cut(image, box(tf.shape(image)[:2])) if box else image

    def jpeg() -> tf.Tensor:
      about = dict(channels=self._channels, dct_method="INTEGER_ACCURATE")  # as Pillow has it
      if box is None:
        return tf.io.decode_jpeg(data, **about)
      size_2 = tf.io.extract_jpeg_shape(data)[:2]
      y, x, h, w = tf.unstack(box(size_2))
      # The colours of the last column take the next one into account.
      wider = tf.io.decode_and_crop_jpeg(data, [y, x, h, tf.minimum(w + 1, size_2[1] - x)], **about)
      return tf.ensure_shape(wider, [None, None, self._channels])[:, :w]

    image = tf.cond(tf.io.is_jpeg(data), jpeg, other)
    return tf.cast(tf.ensure_shape(image, [None, None, self._channels]), tf.float32)

  def normalised(self, image_YXC: tf.Tensor) -> tf.Tensor:
    mean = np.array(self.mean)
    std = np.array(self.std)
    return _pixels.linear(image_YXC, 1 / (255 * std), -mean / std)


def task(
  images: Seen, mixing: Mixing | None = None, store: stores.ImageStore | None = None
) -> Task:
  """Make the task `image_classification`; `store` holds the images if they are open already.

  Raises:
    UserError: an unusable source or argument, no usable image, a file changed since it was
      prepared.
  """
  resolution = images.resolution
  channels = images.channels
  crop = images.crop
  repeats = images.repeats
  if not 0 < crop <= 1:
    raise UserError(f"config.task.crop: found {crop}, expected above 0 and at most 1")
  if store is None:
    fields = dict(
      image_field=images.image_field, label_field=images.label_field, classes=images.classes
    )
    store = stores.open_store(**images.opening, **fields)
  pixels = Pixels(store, channels, images.mean, images.std)
  given = dict(resolution=resolution, mean=pixels.mean, std=pixels.std)
  way = dict(fit=images.fit, method=images.method)
  fitted = functools.partial(
    at_resolution, sides_2=height_and_width(resolution), mean=pixels.mean, **way
  )
  steps = [
    slots.make("config.task.augmentations", value, available, "make", **given)
    for value in images.augmentations
  ]
  augment = chained([*steps, Augmentation(0, lambda image_YXC, _: fitted(image_YXC, crop=1.0))])
  classes = store.classes
  N = store.num_images
  features = declared.images(resolution, channels, mixed=mixing is not None)
  labels_N = tf.constant(store.labels)
  shape = tf.TensorSpec([*height_and_width(resolution), channels], tf.float32)

  def finished(
    image_BYXC: tf.Tensor, index_B: tf.Tensor, other_B: tf.Tensor, share_B: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    label_B = tf.gather(labels_N, index_B)
    made = {
      "image": image_BYXC,
      "label": label_B,
      "example_weights": tf.ones_like(label_B, tf.float32),
      "other_label": tf.gather(labels_N, other_B),
      "label_share": share_B,
    }
    return {name: made[name] for name in features}

  # The turns of `tf.map_fn` run side by side, and cost as much CPU time as a dataset of single
  # images would: docs/explanation/exact-resume.md, "The pipeline".
  def augmented(index_B: tf.Tensor, draws: Draws) -> tf.Tensor:
    def one(row: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
      data, u_N = row
      part_YXC = pixels.decoded(data, augment.box and (lambda size_2: augment.box(size_2, u_N)))
      return pixels.normalised(augment.apply(part_YXC, u_N))

    rows = pixels.read(index_B), draws.uniform(_OWN, augment.numbers)
    return tf.map_fn(one, rows, fn_output_signature=shape)

  def batch(index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    draws = Draws(seed, epoch_B, index_B)
    if mixing is None:
      return finished(
        augmented(index_B, draws), index_B, index_B, tf.ones_like(index_B, tf.float32)
      )
    mixed_BN = draws.uniform(_MIXED, NUMBERS)
    other_B = tf.where(
      mixing.wanted(mixed_BN), partners(index_B, epoch_B // repeats, seed, N), index_B
    )
    # Each image once, though most are in two mixtures.
    places_2B = tf.tile(epoch_B, [2]) * N + tf.concat([index_B, other_B], 0)
    place_U, row_2B = tf.unique(places_2B)
    image_UYXC = augmented(place_U % N, Draws(seed, place_U // N, place_U % N))
    image_BYXC, share_B = tf.map_fn(
      lambda row: mixing(image_UYXC[row[0]], image_UYXC[row[1]], row[2]),
      (*tf.split(row_2B, 2), mixed_BN),
      fn_output_signature=(shape, tf.TensorSpec([], tf.float32)),
    )
    return finished(image_BYXC, index_B, other_B, share_B)

  def evaluated(index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    middle = lambda data: pixels.normalised(fitted(pixels.decoded(data), crop=crop))  # noqa: E731
    made = tf.map_fn(middle, pixels.read(index_B), fn_output_signature=shape)
    return finished(made, index_B, index_B, tf.ones_like(index_B, tf.float32))

  return Task(
    name=images.label or f"{store.name}_image_classification",
    vocabulary=LabelVocabulary(classes),
    fingerprint=digest(
      task="image_classification.v4",
      images=store.fingerprint,
      augmentations=[to_plain(value) for value in images.augmentations],
      mixing=vars(mixing) if mixing else None,
      **dict(channels=channels, crop=crop, repeats=repeats, **given),
      **way,
    ),
    num_examples=N,
    features=features,
    batch=batch,
    numbering=f"{store.fingerprint} {repeats}",
    classes=classes,
    labels=store.labels if classes else None,
    eval_batch=evaluated,
    repeats=repeats,
  )


def extended(
  version: str,
  images: Seen,
  whole: Task,
  features: Features,
  more: Callable[[dict[str, tf.Tensor], Draws, bool], dict[str, tf.Tensor]],
  **facts: Any,
) -> Task:
  """Return a task on images with further features.

  Args:
    version: the task's name and version; raise the version when its examples change.
    images: its arguments.
    whole: the task whose features it extends.
    features: its features; other features of `whole` are left out.
    more: (features of a batch, its random numbers, whether it is for training) -> further features.
    facts: all that the further features depend on; JSON.
  """

  def extending(batch, training: bool):
    def made(index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
      found = batch(index_B, epoch_B, seed)
      found |= more(found, Draws(seed, epoch_B, index_B), training)
      return {name: found[name] for name in features}

    return made

  return dataclasses.replace(
    whole,
    name=images.label or whole.name.replace("image_classification", version.partition(".")[0]),
    fingerprint=digest(task=version, images=whole.fingerprint, **facts),
    features=features,
    batch=extending(whole.batch, True),
    eval_batch=extending(whole.eval_batch, False),
  )


def at_resolution(
  image_YXC: tf.Tensor,
  *,
  sides_2: tuple[int, int],
  crop: float,
  fit: pictures.Fit,
  mean: Sequence[float],
  method: pictures.Method = "bicubic",
) -> tf.Tensor:
  """Bring an image to a height and width, as `Seen.fit` says: float32 [*sides_2, C]; `mean` fills
  what it leaves."""
  shape = tf.shape(image_YXC)[:2]
  cuts = fit.endswith("cut")
  whole_2 = size = tf.constant(
    [pictures.covered(side, crop) for side in sides_2] if cuts else sides_2
  )
  if not fit.startswith("squeezed"):  # the other side is rounded down, as in torchvision
    axis = (tf.argmax if cuts else tf.argmin)(whole_2 / shape)
    fitting = tf.cast(whole_2[axis], tf.int64)
    given = tf.cast(shape, tf.int64)
    size = tf.maximum(tf.cast(given * fitting // given[axis], tf.int32), whole_2 if cuts else 1)
  start = (size - sides_2) // 2
  seen_2 = sides_2 if fit != "padded" else tf.unstack(tf.minimum(size, sides_2))
  box_4 = tf.concat([tf.maximum(start, 0), seen_2], 0)

  # only the middle: the whole of a long and narrow image would take gigabytes
  def resized() -> tf.Tensor:
    return _pixels.clipped(_resize.part(image_YXC, seen_2, size, box_4[:2], method))

  made = tf.cond(tf.reduce_all(size == shape), lambda: cut(image_YXC, box_4), resized)
  if fit == "padded":
    before_2 = tf.maximum(-start, 0)
    fill_C = 255.0 * tf.constant(mean, tf.float32)
    around = tf.stack([before_2, sides_2 - before_2 - tf.stack(seen_2)], 1)
    made = tf.pad(made - fill_C, tf.pad(around, [[0, 1], [0, 0]])) + fill_C
  return tf.ensure_shape(made, [*sides_2, image_YXC.shape[-1]])


def of_channels(name: str, values: tuple, channels: int) -> tuple[float, ...]:
  """Return one number per channel, from one for all or one for each; UserError for any other number
  of values."""
  if (
    len(values) not in (1, channels)
    or not np.isfinite(values).all()
    or (name == "std" and min(values) <= 0)
  ):
    raise UserError(
      f"config.task.{name}: found {list(values)}, expected one number, or one for each of "
      f"{channels} channels"
    )
  if name == "mean" and not 0 <= min(values) <= max(values) <= 1:
    raise UserError(
      f"config.task.mean: found {list(values)}, expected numbers from 0 to 1; divide those of "
      "bytes by 255"
    )
  return tuple(float(v) for v in values) * (channels // len(values))
