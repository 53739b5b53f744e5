"""The examples of tasks on images: read images by index, augment, mix and normalise them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from t5x_like import slots
from t5x_like.data import augmentations as augmentation_package
from t5x_like.data import random
from t5x_like.data.augmentations import Augmentation, _pixels, _resize, chain, crop_to_box
from t5x_like.data.features import BatchFunction
from t5x_like.data.images import layout, pictures
from t5x_like.data.images import store as stores
from t5x_like.data.images.mixing import NUM_DRAWS, Mixing, find_partners
from t5x_like.data.source import SourceArguments
from t5x_like.data.task import Task
from t5x_like.errors import UserError
from t5x_like.quiet_tensorflow import tf
from t5x_like.resolution import Resolution, height_and_width
from t5x_like.slots import PositiveInt
from t5x_like.vocabularies.kinds.labels import LabelVocabulary

# The streams of an example's random numbers.
_AUGMENTATION_STREAM = 0
_MIXING_STREAM = 1
FIRST_TASK_STREAM = 2  # the first stream that is free for tasks


@dataclasses.dataclass(frozen=True)
class RandomDraws:
  """The random numbers of a batch, a function of each example's index and epoch.

  Streams are independent. Tasks use the streams from `FIRST_TASK_STREAM` on.
  """

  seed: int
  epoch_B: tf.Tensor
  index_B: tf.Tensor

  def bits(self, stream: int, n: int, *words: int) -> tf.Tensor:
    """Return n random words for each example, uint32 [B, n]; `words` select a substream."""
    words_B = (tf.constant(word, tf.int64) for word in (stream, *words))
    return random.bits(random.row_keys(self.seed, self.epoch_B, self.index_B, *words_B), n)

  def uniform(self, stream: int, n: int) -> tf.Tensor:
    """Return numbers in [0, 1), float32 [B, n], of 24 bits each."""
    high_BN = tf.bitwise.right_shift(self.bits(stream, n), tf.constant(8, tf.uint32))
    return tf.cast(high_BN, tf.float32) * 2.0**-24


class Pixels:
  """The pixels of a store's images.

  Args:
    store: the images.
    channels: 3 for RGB, 1 for grey.
    mean: the mean for normalisation, one number or one per channel.
    std: the standard deviation for normalisation, one number or one per channel.

  Raises:
    UserError: the mean or the deviation has another number of values.
  """

  def __init__(self, store: stores.ImageStore, channels: int, mean: tuple, std: tuple):
    self._store = store
    self._channels = channels
    self.mean = per_channel("mean", mean, channels)
    self.std = per_channel("std", std, channels)

  def read(self, index_B: tf.Tensor) -> tf.Tensor:
    """Return the encoded images at some indices, string [B]."""
    encoded_B = tf.numpy_function(self._store.read, [index_B], tf.string, stateful=False)
    return tf.ensure_shape(encoded_B, index_B.shape)

  def decode(
    self, encoded: tf.Tensor, find_box: Callable[[tf.Tensor], tf.Tensor] | None = None
  ) -> tf.Tensor:
    """Decode an image, or a box of it: float32 [Y, X, C] in 0 to 255.

    Args:
      encoded: the encoded image.
      find_box: `(height and width of the image) -> the box`, int32 [4] (y, x, height, width).
    """

    def decode_other() -> tf.Tensor:
      image_YXC = tf.io.decode_image(encoded, self._channels, expand_animations=False)
      image_YXC = tf.ensure_shape(image_YXC, [None, None, self._channels])
      if find_box is None:
        return image_YXC
      return crop_to_box(image_YXC, find_box(tf.shape(image_YXC)[:2]))

    def decode_jpeg() -> tf.Tensor:
      # Pillow uses this method too.
      options = dict(channels=self._channels, dct_method="INTEGER_ACCURATE")
      if find_box is None:
        return tf.io.decode_jpeg(encoded, **options)
      size_2 = tf.io.extract_jpeg_shape(encoded)[:2]
      y, x, height, width = tf.unstack(find_box(size_2))
      # Decode one column more, on which the colours of the last column depend.
      window = [y, x, height, tf.minimum(width + 1, size_2[1] - x)]
      wider_YXC = tf.io.decode_and_crop_jpeg(encoded, window, **options)
      return tf.ensure_shape(wider_YXC, [None, None, self._channels])[:, :width]

    image_YXC = tf.cond(tf.io.is_jpeg(encoded), decode_jpeg, decode_other)
    return tf.cast(tf.ensure_shape(image_YXC, [None, None, self._channels]), tf.float32)

  def normalize(self, image_YXC: tf.Tensor) -> tf.Tensor:
    """Subtract the mean and divide by the deviation, from pixels in 0 to 255."""
    mean = np.array(self.mean)
    std = np.array(self.std)
    return _pixels.linear(image_YXC, 1 / (255 * std), -mean / std)


class _ImageExamples:
  """Makes the batches of the images of a store.

  Attributes:
    pixels: the pixels of the store's images.
  """

  def __init__(self, images: ImageArguments, mixing: Mixing | None, store: stores.ImageStore):
    self.pixels = Pixels(store, images.channels, images.mean, images.std)
    self._features = layout.describe(images.resolution, images.channels, mixed=mixing is not None)
    self._mixing = mixing
    self._crop = images.crop
    self._repeats = images.repeats
    self._num_images = store.num_images
    self._labels_N = tf.constant(store.labels)
    sides_2 = height_and_width(images.resolution)
    self._image_spec = tf.TensorSpec([*sides_2, images.channels], tf.float32)
    self._fit = functools.partial(
      fit_to_resolution,
      sides_2=sides_2,
      mean=self.pixels.mean,
      fit=images.fit,
      method=images.method,
    )
    self._augment = self._build_augmentation(images)

  def _build_augmentation(self, images: ImageArguments) -> Augmentation:
    """Chain the augmentations of training, then fit images that have another size."""
    augmentations = []
    for value in images.augmentations:
      augmentations.append(
        slots.make(
          "config.task.augmentations",
          value,
          augmentation_package,
          "make",
          resolution=images.resolution,
          mean=self.pixels.mean,
          std=self.pixels.std,
        )
      )
    augmentations.append(Augmentation(0, lambda image_YXC, _: self._fit(image_YXC, crop=1.0)))
    return chain(augmentations)

  def batch(self, index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    """Return augmented images; see `Task.batch`."""
    draws = RandomDraws(seed, epoch_B, index_B)
    if self._mixing is None:
      share_B = tf.ones_like(index_B, tf.float32)
      return self._make_features(self._read_augmented(index_B, draws), index_B, index_B, share_B)
    u_BN = draws.uniform(_MIXING_STREAM, NUM_DRAWS)
    N = self._num_images
    partner_B = find_partners(index_B, epoch_B // self._repeats, seed, N)
    other_B = tf.where(self._mixing.is_mixed(u_BN), partner_B, index_B)
    # Most images are in two mixtures, but each is read and augmented once. The number epoch * N +
    # index identifies an image in an epoch. U of these numbers are distinct.
    image_ids_2B = tf.tile(epoch_B, [2]) * N + tf.concat([index_B, other_B], 0)
    image_id_U, row_2B = tf.unique(image_ids_2B)
    index_U = image_id_U % N
    image_UYXC = self._read_augmented(index_U, RandomDraws(seed, image_id_U // N, index_U))
    image_BYXC, share_B = tf.map_fn(
      lambda row: self._mixing(image_UYXC[row[0]], image_UYXC[row[1]], row[2]),
      (*tf.split(row_2B, 2), u_BN),
      fn_output_signature=(self._image_spec, tf.TensorSpec([], tf.float32)),
    )
    return self._make_features(image_BYXC, index_B, other_B, share_B)

  def eval_batch(self, index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    """Return images without augmentation; see `Task.eval_batch`."""

    def decode(encoded: tf.Tensor) -> tf.Tensor:
      return self.pixels.normalize(self._fit(self.pixels.decode(encoded), crop=self._crop))

    encoded_B = self.pixels.read(index_B)
    image_BYXC = tf.map_fn(decode, encoded_B, fn_output_signature=self._image_spec)
    return self._make_features(image_BYXC, index_B, index_B, tf.ones_like(index_B, tf.float32))

  def _read_augmented(self, index_B: tf.Tensor, draws: RandomDraws) -> tf.Tensor:
    """Return images, augmented and normalised: float32 [B, Y, X, C].

    `tf.map_fn` decodes the images of a batch in parallel, and costs as much CPU time as a dataset
    of single images would: docs/explanation/exact-resume.md, "The pipeline".
    """

    def decode(row: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
      encoded, u_N = row

      def find_box(size_2: tf.Tensor) -> tf.Tensor:
        return self._augment.box(size_2, u_N)

      image_YXC = self.pixels.decode(encoded, find_box if self._augment.box else None)
      return self.pixels.normalize(self._augment.apply(image_YXC, u_N))

    encoded_B = self.pixels.read(index_B)
    u_BN = draws.uniform(_AUGMENTATION_STREAM, self._augment.numbers)
    return tf.map_fn(decode, (encoded_B, u_BN), fn_output_signature=self._image_spec)

  def _make_features(
    self, image_BYXC: tf.Tensor, index_B: tf.Tensor, other_B: tf.Tensor, share_B: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    """Return the features of a batch.

    Args:
      image_BYXC: the images, mixed.
      index_B: the index of the first image of each mixture.
      other_B: the index of the second; equal to the first where nothing is mixed.
      share_B: the share of the first image in its mixture.
    """
    label_B = tf.gather(self._labels_N, index_B)
    arrays = {
      "image": image_BYXC,
      "label": label_B,
      "example_weights": tf.ones_like(label_B, tf.float32),
      "other_label": tf.gather(self._labels_N, other_B),
      "label_share": share_B,
    }
    return {name: arrays[name] for name in self._features}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageArguments(SourceArguments):
  """The arguments that tasks on single images share.

  Attributes:
    resolution: the height and width of the images in a batch; one number for squares.
    channels: 3 for RGB, 1 for grey; images are converted to it.
    augmentations: the augmentations of training images, in order: names of modules of
      `data/augmentations`, or {"name": …} with arguments. An image that they leave in another size
      is resized like the images of evaluations.
    repeats: the number of copies of each image in an epoch, consecutive and augmented independently
      (Hoffer et al. 2020; DeiT takes 3); all copies are in one batch if the batch size is a
      multiple.
    crop: evaluations resize images to cover resolution / crop, and cut out the middle.
    fit: how an image is fitted to the resolution in evaluations and, where augmentations leave
      another size, in training. "cut" keeps the aspect ratio and cuts out the middle; "padded"
      keeps the aspect ratio and fills the rest with the mean; "squeezed" changes the aspect ratio;
      "squeezed_cut" changes it and cuts out the middle.
    method: the interpolation by which images are fitted.
    mean: the mean for normalising pixels from 0 to 1, one number or one per channel.
    std: the standard deviation for normalising pixels, one number or one per channel.
    image_field: the field of the encoded image in the records.
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

  def build_images(
    self,
    version: str,
    store: stores.ImageStore,
    mixing: Mixing | None = None,
    make_extra: Callable[[dict[str, tf.Tensor], RandomDraws, bool], dict[str, tf.Tensor]]
    | None = None,
    facts: Mapping[str, Any] = {},
  ) -> Task:
    """Return a task on the images of a store.

    Args:
      version: the task's name and version; increase the version when its examples change.
      store: the images.
      mixing: how images are mixed; None for no mixing.
      make_extra: `(features of a batch, its random numbers, whether it is for training) -> further
        features`; None for none.
      facts: all that these depend on besides the arguments and the images; JSON.

    Raises:
      UserError: an argument is impossible.
    """
    if not 0 < self.crop <= 1:
      raise UserError(f"config.task.crop: found {self.crop}, expected above 0 and at most 1")
    examples = _ImageExamples(self, mixing, store)
    vocabulary = LabelVocabulary(store.classes)
    features = self.features(vocabulary)

    def extend(batch: BatchFunction, training: bool) -> BatchFunction:
      def extended_batch(index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
        arrays = batch(index_B, epoch_B, seed)
        if make_extra:
          arrays |= make_extra(arrays, RandomDraws(seed, epoch_B, index_B), training)
        return {name: arrays[name] for name in features}

      return extended_batch

    task_name, _, _ = version.partition(".")
    return Task(
      name=self.label or f"{store.name}_{task_name}",
      vocabulary=vocabulary,
      fingerprint=self.fingerprint(
        version,
        images=store.fingerprint,
        mean=examples.pixels.mean,
        std=examples.pixels.std,
        **facts,
      ),
      num_examples=store.num_images,
      features=features,
      batch=extend(examples.batch, True),
      numbering=f"{store.fingerprint} {self.repeats}",
      classes=store.classes,
      labels=store.labels if store.classes else None,
      eval_batch=extend(examples.eval_batch, False),
      repeats=self.repeats,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledImageArguments(ImageArguments):
  """The arguments that tasks on labelled images share.

  Sources are `folders:`, `webdataset:`, `idx:`, `tfds:` and `digits`. Without labels, the sources
  of boxes can be used too.

  Attributes:
    label_field: the field of the label; None for tasks that learn from images without labels.
    classes: the names of the classes, in the order of their numbers; by default the source's. Set
      it for images that have only some of the classes of a run.
  """

  label_field: str | None = "label"
  classes: tuple[str, ...] = ()

  def open_images(self) -> stores.ImageStore:
    """Open the images, preparing them first if necessary.

    Raises:
      UserError: the source is unusable, no image is usable, or a file has changed since it was
        prepared.
    """
    return stores.open_store(
      **self.store_arguments,
      image_field=self.image_field,
      label_field=self.label_field,
      classes=self.classes,
    )


def fit_to_resolution(
  image_YXC: tf.Tensor,
  *,
  sides_2: tuple[int, int],
  crop: float,
  fit: pictures.Fit,
  mean: Sequence[float],
  method: pictures.Method = "bicubic",
) -> tf.Tensor:
  """Fit an image to a height and width: float32 [*sides_2, C].

  Args:
    image_YXC: the image.
    sides_2: the height and width.
    crop: see `ImageArguments.crop`.
    fit: see `ImageArguments.fit`.
    mean: the colour, from 0 to 1, around an image that is smaller than the sides.
    method: the interpolation.
  """
  shape = tf.shape(image_YXC)[:2]
  size = _resized_shape(shape, sides_2, crop, fit)
  start = (size - sides_2) // 2
  visible_2 = sides_2
  if fit == "padded":
    visible_2 = tf.unstack(tf.minimum(size, sides_2))
  box_4 = tf.concat([tf.maximum(start, 0), visible_2], 0)

  # Only the visible middle is resized: a long and narrow image, resized whole, can take gigabytes.
  def resize_middle() -> tf.Tensor:
    middle = _resize.resize_and_crop(image_YXC, visible_2, size, box_4[:2], method)
    return _pixels.clip(middle)

  has_size = tf.reduce_all(size == shape)
  fitted = tf.cond(has_size, lambda: crop_to_box(image_YXC, box_4), resize_middle)
  if fit == "padded":
    before_2 = tf.maximum(-start, 0)
    after_2 = sides_2 - before_2 - tf.stack(visible_2)
    padding_32 = tf.pad(tf.stack([before_2, after_2], 1), [[0, 1], [0, 0]])
    fill_C = 255.0 * tf.constant(mean, tf.float32)
    fitted = tf.pad(fitted - fill_C, padding_32) + fill_C
  return tf.ensure_shape(fitted, [*sides_2, image_YXC.shape[-1]])


def _resized_shape(
  shape: tf.Tensor, sides_2: tuple[int, int], crop: float, fit: pictures.Fit
) -> tf.Tensor:
  """Return the height and width to which an image is resized, before it is cut or padded."""
  is_cut = fit.endswith("cut")
  target = sides_2
  if is_cut:
    target = [pictures.covering_size(side, crop) for side in sides_2]
  target_2 = tf.constant(target)
  if fit.startswith("squeezed"):
    return target_2
  # One side is exact; the other is rounded down, as in torchvision.
  ratio_2 = target_2 / shape
  axis = tf.argmax(ratio_2) if is_cut else tf.argmin(ratio_2)
  exact = tf.cast(target_2[axis], tf.int64)
  old_2 = tf.cast(shape, tf.int64)
  return tf.maximum(tf.cast(old_2 * exact // old_2[axis], tf.int32), target_2 if is_cut else 1)


def per_channel(name: str, values: tuple, channels: int) -> tuple[float, ...]:
  """Return one number per channel, from one number for all channels or one for each.

  Raises:
    UserError: there is another number of values, or they cannot be a mean or deviation.
  """
  is_valid = len(values) in (1, channels) and np.isfinite(values).all()
  if not is_valid or (name == "std" and min(values) <= 0):
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
