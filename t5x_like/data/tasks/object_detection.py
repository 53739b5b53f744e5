"""Object detection in images (Carion et al. 2020).

  config.task = {"name": "object_detection", "source":
                 "coco:train=annotations/instances_train2017.json,validation=…", "resolution": 1333,
                 "shortest": 800, "augmentations": ["flip", "crop", "resize"]}

Features: `image` float32 [R, R, C], normalised, padded below and on the right; `image_size` int32
  [2], height and width without padding; `boxes` float32 [M, 4], ymin, xmin, ymax, xmax as shares of
  that size; `box_labels` int32 [M], their classes, -1 for no box; `example_weights`. Training
  augments an image and its boxes anew in every epoch (`data/box_augmentations`), as a function of
  the image, the epoch and the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Unpack

from t5x_like import slots
from t5x_like.corpora.sources import check_split, open_source, parse_split
from t5x_like.data import box_augmentations as available
from t5x_like.data.augmentations import chain
from t5x_like.data.box_augmentations import Boxed, _sizes
from t5x_like.data.features import Feature, Features
from t5x_like.data.images import boxes as kept
from t5x_like.data.images import examples, pictures
from t5x_like.data.images import store as stores
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.source import Source
from t5x_like.data.task import Task, digest
from t5x_like.slots import PositiveInt, to_plain
from t5x_like.vocabularies.kinds.labels import LabelVocabulary

# On the built-in corpus, for `:debug`.
BUILT_IN = {"source": "digit_scenes"}


def features(vocabulary, /, *, resolution: int, channels: int, boxes: int, **_) -> Features:
  """Return the features of the task with these arguments."""
  return {
    "image": Feature((resolution, resolution, channels), "float32"),
    "image_size": Feature((2,), "int32"),
    "boxes": Feature((boxes, 4), "float32"),
    "box_labels": Feature((boxes,), "int32"),
    "example_weights": Feature((), "float32"),
  }


def task(
  *,
  resolution: PositiveInt = 1333,
  shortest: PositiveInt = 800,
  channels: Literal[1, 3] = 3,
  boxes: PositiveInt = 100,
  augmentations: tuple = ("flip", "crop", "resize"),
  classes: tuple[str, ...] = (),
  buckets: PositiveInt = 1,
  mean: tuple[float, ...] = pictures.IMAGENET_MEAN,
  std: tuple[float, ...] = pictures.IMAGENET_STD,
  image_field: str = "image",
  objects_field: str = "objects",
  **images: Unpack[Source],
) -> Task:
  """Make the task.

  Args:
    resolution: height and width of the batch; larger images are resized to fit.
    shortest: the shorter side of an image in evaluations, or less so that the longer side fits.
    channels: 3 for RGB, 1 for grey; images of the other kind are converted.
    boxes: places for boxes; an image with more is refused.
    augmentations: of training images, in order: modules of `data/box_augmentations`, names or
      {"name": …} with arguments. Images that are too large afterwards are resized to fit.
    classes: the names of the classes, in the order of their numbers; by default the source's.
    buckets: the most heights, and the most widths, to which the padding of training batches is cut,
      see `training/buckets.py`; 1 leaves it.
    mean, std: mean and deviation for normalising pixels in 0 to 1; by default ImageNet's.
    image_field, objects_field: fields of the source.
    images: see `Source`; the source is `voc:`, `coco:`, `boxes:`, `tfds:` or `digit_scenes`.

  Raises:
    UserError: an unusable source or argument, no usable image, more boxes than places, a file
      changed since it was prepared.
  """
  asked = Source(**images)
  opened = open_source(asked.source, fields=(image_field, objects_field), data_dir=asked.data_dir)
  check_split(opened, parse_split(asked.split)[0])
  notes, classes = kept.make_notes(opened, objects_field, image_field, classes)
  store = stores.open_store(**asked.opening, image_field=image_field, label_field=None, notes=notes)
  pixels = examples.Pixels(store, channels, mean, std)
  known = kept.read_boxes(store)
  made = [
    slots.make("config.task.augmentations", one, available, "make", resolution=resolution)
    for one in augmentations
  ]
  augment = chain(made)
  described = features(None, resolution=resolution, channels=channels, boxes=boxes)
  boxes_NM4, labels_NM = (tf.constant(x) for x in known.pad_learned(boxes))
  spec = {
    name: tf.TensorSpec(one.shape, one.dtype)
    for name, one in described.items()
    if name != "example_weights"
  }

  def padded(boxed: Boxed, labels_M: tf.Tensor) -> dict[str, tf.Tensor]:
    image_YXC, boxes_M4, real_M = boxed
    image_YXC = _sizes.resize_sides(
      image_YXC, tf.minimum(tf.reduce_min(tf.shape(image_YXC)[:2]), resolution), resolution
    )
    size_2 = tf.shape(image_YXC)[:2]
    whole = tf.pad(
      pixels.normalize(image_YXC), tf.pad((resolution - size_2)[:, None], [[0, 1], [1, 0]])
    )
    return {
      "image": tf.ensure_shape(whole, described["image"].shape),
      "image_size": size_2,
      "boxes": tf.where(real_M[:, None], boxes_M4, 0.0),
      "box_labels": tf.where(real_M, labels_M, -1),
    }

  def each(
    index_B: tf.Tensor, change: Callable[..., Boxed], *numbers_B: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    def one(row):
      data, boxes_M4, labels_M, *numbers = row
      return padded(change((pixels.decode(data), boxes_M4, labels_M >= 0), *numbers), labels_M)

    more = boxes - labels_NM.shape[1]
    boxes_BM4 = tf.pad(tf.gather(boxes_NM4, index_B), [[0, 0], [0, more], [0, 0]])
    labels_BM = tf.pad(tf.gather(labels_NM, index_B), [[0, 0], [0, more]], constant_values=-1)
    rows = pixels.read(index_B), boxes_BM4, labels_BM, *numbers_B
    return tf.map_fn(one, rows, fn_output_signature=spec) | {
      "example_weights": tf.ones_like(index_B, tf.float32)
    }

  def batch(index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    return each(
      index_B,
      augment.apply,
      examples.RandomDraws(seed, epoch_B, index_B).uniform(0, augment.numbers),
    )

  def evaluated(index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    return each(
      index_B,
      lambda boxed: (_sizes.resize_sides(boxed[0], tf.constant(shortest), resolution), *boxed[1:]),
    )

  return Task(
    name=asked.label or f"{store.name}_object_detection",
    vocabulary=LabelVocabulary(classes),
    fingerprint=digest(
      task="object_detection.v3",
      images=store.fingerprint,
      classes=list(classes),
      augmentations=[to_plain(value) for value in augmentations],
      **dict(
        resolution=resolution, channels=channels, boxes=boxes, mean=pixels.mean, std=pixels.std
      ),
    ),
    num_examples=store.num_images,
    features=described,
    batch=batch,
    numbering=store.fingerprint,
    classes=classes,
    boxes=known,
    buckets=buckets,
    eval_batch=evaluated,
  )
