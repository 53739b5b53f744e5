"""The examples of tasks on labelled images: read, augmented, mixed and normalised, each a function of its index."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from t5x_like import slots
from t5x_like.data import augmentations as available
from t5x_like.data import features as declared
from t5x_like.data import random
from t5x_like.data.augmentations import Augmentation, together
from t5x_like.data.images import pictures
from t5x_like.data.images import store as stores
from t5x_like.data.images.mixing import NUMBERS, Mixing
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.task import Task, digest
from t5x_like.errors import UserError
from t5x_like.slots import Positive, plain
from t5x_like.store.reader import Verify
from t5x_like.vocabularies.kinds.labels import LabelVocabulary

_OWN, _OTHER, _MIXED = 0, 1, 2  # streams of random numbers of an example: its image, the image mixed in, the mixing
MORE = 3  # the first stream free for tasks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images:
  """The arguments that tasks on labelled images share.

  Attributes:
    source: `folders:`, `idx:`, `tfds:` or `digits`, see `corpora/sources/__init__.py`.
    split: the split of the source.
    resolution: height and width of the images in a batch.
    channels: 3 for RGB, 1 for grey; images of the other kind are converted.
    augmentations: of training images, in order: modules of `data/augmentations`, names or {"name": …} with arguments.
      An image of another size after them is resized like the images of evaluations.
    repeats: copies of each image per epoch, one after the other, each augmented independently (Hoffer et al. 2020;
      DeiT takes 3); every batch holds them together if its size is a multiple.
    crop: evaluations resize the shorter side to resolution / crop, and see the middle.
    mean, std: mean and deviation for normalising pixels in 0 to 1, one number or one per channel.
    image_field, label_field: fields of the source.
    cache, data_dir, verify: see `text_to_text`.
    label: the name in metrics; by default `<corpus>_<task>`.
  """

  source: str
  split: str
  resolution: Positive = 224
  channels: Literal[1, 3] = 3
  augmentations: tuple = ("random_resized_crop", "flip")
  repeats: Positive = 1
  crop: float = pictures.CROP
  mean: tuple[float, ...] = pictures.MEAN
  std: tuple[float, ...] = pictures.STD
  image_field: str = "image"
  label_field: str = "label"
  cache: str = "data/prepared"
  data_dir: str | None = None
  label: str | None = None
  verify: Verify = "auto"


def task(images: Images, mixing: Mixing | None = None, store: stores.ImageStore | None = None) -> Task:
  """Make the task `image_classification`; `store` holds the images if they are open already.

  Raises:
    UserError: an unusable source or argument, no usable image, a file changed since it was prepared.
  """
  resolution, channels, crop, repeats = images.resolution, images.channels, images.crop, images.repeats
  mean, std = (of_channels(name, values, channels) for name, values in (("mean", images.mean), ("std", images.std)))
  if not 0 < crop <= 1:
    raise UserError(f"config.task.crop: found {crop}, expected above 0 and at most 1")
  store = store or stores.open_store(
    images.source,
    images.split,
    image_field=images.image_field,
    label_field=images.label_field,
    cache=images.cache,
    data_dir=images.data_dir,
    verify=images.verify,
  )
  given = dict(resolution=resolution, mean=mean, std=std)
  steps = [slots.make("config.task.augmentations", value, available, "make", **given) for value in images.augmentations]
  augment = together([*steps, Augmentation(0, lambda image_YXC, _: centred(image_YXC, resolution, 1.0))])
  classes, N = store.classes, store.num_images
  arguments = dict(resolution=resolution, channels=channels, crop=crop, mean=mean, std=std, repeats=repeats)
  features = declared.images(resolution, channels, mixed=mixing is not None)
  labels_N = tf.constant(store.labels)
  mean_C, std_C = tf.constant(mean, tf.float32), tf.constant(std, tf.float32)

  def read(index_B: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(tf.numpy_function(store.read, [index_B], tf.string, stateful=False), index_B.shape)

  def decoded(data: tf.Tensor) -> tf.Tensor:
    image = tf.io.decode_image(data, channels, expand_animations=False)
    return tf.cast(tf.ensure_shape(image, [None, None, channels]), tf.float32)

  def finished(
    image_BYXC: tf.Tensor, index_B: tf.Tensor, other_B: tf.Tensor, share_B: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    label_B = tf.gather(labels_N, index_B)
    made = {
      "image": (image_BYXC / 255.0 - mean_C) / std_C,
      "label": label_B,
      "example_weights": tf.ones_like(label_B, tf.float32),
      "other_label": tf.gather(labels_N, other_B),
      "label_share": share_B,
    }
    return {name: made[name] for name in features}

  def batch(index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    def numbers(stream: int, n: int) -> tf.Tensor:
      return uniform(random.bits(random.row_keys(seed, epoch_B, index_B, tf.constant(stream, tf.int64)), n))

    shape = tf.TensorSpec([resolution, resolution, channels], tf.float32)
    own_BN = numbers(_OWN, augment.numbers)
    if mixing is None:
      made = tf.map_fn(
        lambda one: augment.apply(decoded(one[0]), one[1]), (read(index_B), own_BN), fn_output_signature=shape
      )
      return finished(made, index_B, index_B, tf.ones_like(index_B, tf.float32))
    key_B = random.row_keys(seed, epoch_B, index_B, tf.constant(_OTHER, tf.int64), tf.constant(1, tf.int64))
    other_B = tf.cast(random.integers(random.bits(key_B, 1)[:, 0], N), tf.int64)
    mixed_BN = numbers(_MIXED, NUMBERS)
    wanted_B = mixing.wanted(mixed_BN)
    needed_2B = tf.concat([tf.ones_like(wanted_B), wanted_B], 0)  # the others are not decoded
    numbers_2BN = tf.concat([own_BN, numbers(_OTHER, augment.numbers)], 0)
    image_2BYXC = tf.map_fn(
      lambda one: tf.cond(one[2], lambda: augment.apply(decoded(one[0]), one[1]), lambda: tf.zeros(shape.shape)),
      (read(tf.concat([index_B, other_B], 0)), numbers_2BN, needed_2B),
      fn_output_signature=shape,
    )
    image_BYXC, share_B = tf.map_fn(
      lambda one: mixing(*one),
      (*tf.split(image_2BYXC, 2), mixed_BN),
      fn_output_signature=(shape, tf.TensorSpec([], tf.float32)),
    )
    return finished(image_BYXC, index_B, other_B, share_B)

  def evaluated(index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    shape = tf.TensorSpec([resolution, resolution, channels], tf.float32)
    made = tf.map_fn(lambda data: centred(decoded(data), resolution, crop), read(index_B), fn_output_signature=shape)
    return finished(made, index_B, index_B, tf.ones_like(index_B, tf.float32))

  return Task(
    name=images.label or f"{store.name}_image_classification",
    vocabulary=LabelVocabulary(classes),
    fingerprint=digest(
      task="image_classification.v1",
      images=store.fingerprint,
      augmentations=[plain(value) for value in images.augmentations],
      mixing=vars(mixing) if mixing else None,
      **arguments,
    ),
    num_examples=N,
    features=features,
    batch=batch,
    numbering=f"{store.fingerprint} {repeats}",
    classes=classes,
    labels=store.labels,
    evaluated=evaluated,
    repeats=repeats,
  )


def centred(image_YXC: tf.Tensor, resolution: int, crop: float) -> tf.Tensor:
  """Resize the shorter side to resolution / crop and return the middle: [resolution, resolution, C]."""
  shape = tf.shape(image_YXC)[:2]
  side = round(resolution / crop)
  scale = side / tf.reduce_min(shape)
  size = tf.maximum(tf.cast(tf.round(tf.cast(shape, tf.float64) * scale), tf.int32), side)
  start = (size - resolution) // 2

  def resized() -> tf.Tensor:  # only the middle: the whole of a long and narrow image would take gigabytes
    made = tf.raw_ops.ScaleAndTranslate(
      images=image_YXC[None],
      size=[resolution, resolution],
      scale=tf.cast(size, tf.float32) / tf.cast(shape, tf.float32),
      translation=-tf.cast(start, tf.float32),
      kernel_type="keyscubic",
      antialias=True,
    )[0]
    return tf.clip_by_value(made, 0.0, 255.0)

  def cut() -> tf.Tensor:
    return image_YXC[start[0] : start[0] + resolution, start[1] : start[1] + resolution]

  made = tf.cond(tf.reduce_all(size == shape), cut, resized)
  return tf.ensure_shape(made, [resolution, resolution, image_YXC.shape[-1]])


def uniform(bits: tf.Tensor) -> tf.Tensor:
  """Return numbers in [0, 1) from the highest 24 bits of 32-bit words."""
  return tf.cast(tf.bitwise.right_shift(bits, tf.constant(8, tf.uint32)), tf.float32) * 2.0**-24


def of_channels(name: str, values: tuple, channels: int) -> tuple[float, ...]:
  """Return one number per channel, from one for all or one for each; UserError for any other number of values."""
  if len(values) not in (1, channels) or not np.isfinite(values).all() or (name == "std" and min(values) <= 0):
    raise UserError(
      f"config.task.{name}: found {list(values)}, expected one number, or one for each of {channels} channels"
    )
  return tuple(float(v) for v in values) * (channels // len(values))
