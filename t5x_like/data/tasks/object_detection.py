"""Object detection in images (Carion et al. 2020).

  config.task = {"name": "object_detection", "source": "coco:train=annotations/instances_train2017.json,validation=…",
                 "resolution": 1333, "shortest": 800, "augmentations": ["flip", "crop", "resize"]}

Features: `image` float32 [R, R, C], normalised, padded below and on the right; `image_size` int32 [2],
height and width without padding; `boxes` float32 [M, 4], ymin, xmin, ymax, xmax as shares of that size; `box_labels`
int32 [M], their classes, -1 for no box; `example_weights`. Training augments an image and its boxes anew in every epoch
(`data/box_augmentations`), as a function of the image, the epoch and the seed.
"""

from __future__ import annotations

from typing import Literal

from t5x_like import slots
from t5x_like.corpora.sources import check_split, open_source, parted
from t5x_like.data import box_augmentations as available
from t5x_like.data import random
from t5x_like.data.box_augmentations import Boxed, _sizes, together
from t5x_like.data.features import Feature, Features
from t5x_like.data.images import boxes as kept
from t5x_like.data.images import examples, pictures
from t5x_like.data.images import store as stores
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.task import Task, digest
from t5x_like.slots import Positive, plain
from t5x_like.store.reader import Verify
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
  source: str,
  split: str,
  resolution: Positive = 1333,
  shortest: Positive = 800,
  channels: Literal[1, 3] = 3,
  boxes: Positive = 100,
  augmentations: tuple = ("flip", "crop", "resize"),
  classes: tuple[str, ...] = (),
  mean: tuple[float, ...] = pictures.IMAGENET_MEAN,
  std: tuple[float, ...] = pictures.IMAGENET_STD,
  image_field: str = "image",
  objects_field: str = "objects",
  cache: str = "data/prepared",
  data_dir: str | None = None,
  label: str | None = None,
  verify: Verify = "auto",
) -> Task:
  """Make the task.

  Args:
    source: `voc:`, `coco:`, `tfds:` or `digit_scenes`, see `corpora/sources/__init__.py`.
    resolution: height and width of the batch; larger images are resized to fit.
    shortest: the shorter side of an image in evaluations, or less so that the longer side fits.
    channels: 3 for RGB, 1 for grey; images of the other kind are converted.
    boxes: places for boxes; an image with more is refused.
    augmentations: of training images, in order: modules of `data/box_augmentations`, names or {"name": …} with
      arguments. Images that are too large afterwards are resized to fit.
    classes: the names of the classes, in the order of their numbers; by default the source's.
    mean, std: mean and deviation for normalising pixels in 0 to 1; by default ImageNet's.
    image_field, objects_field: fields of the source.
    cache, data_dir, verify: see `text_to_text`.
    label: the name in metrics; by default `<corpus>_object_detection`.

  Raises:
    UserError: an unusable source or argument, no usable image, more boxes than places, a file changed since it was
      prepared.
  """
  mean, std = (examples.of_channels(name, values, channels) for name, values in (("mean", mean), ("std", std)))
  opened = open_source(source, fields=(image_field, objects_field), data_dir=data_dir)
  check_split(opened, parted(split)[0])
  notes, classes = kept.notes(opened, objects_field, image_field, classes)
  options = dict(cache=cache, data_dir=data_dir, verify=verify)
  store = stores.open_store(source, split, image_field=image_field, label_field=None, notes=notes, **options)
  known = kept.of_store(store)
  steps = [
    slots.make("config.task.augmentations", one, available, "make", resolution=resolution) for one in augmentations
  ]
  augment = together(steps)
  described = features(None, resolution=resolution, channels=channels, boxes=boxes)
  boxes_NM4, labels_NM = (tf.constant(x) for x in known.slots(boxes))
  mean_C, std_C = tf.constant(mean, tf.float32), tf.constant(std, tf.float32)
  canvas = tf.TensorSpec([resolution, resolution, channels], tf.float32)

  def read(data: tf.Tensor) -> tf.Tensor:
    image = tf.io.decode_image(data, channels, expand_animations=False)
    return tf.cast(tf.ensure_shape(image, [None, None, channels]), tf.float32)

  def padded(boxed: Boxed, labels_M: tf.Tensor, side: int) -> dict[str, tf.Tensor]:
    image_YXC, boxes_M4, real_M = boxed
    image_YXC = _sizes.resized(image_YXC, tf.minimum(tf.reduce_min(tf.shape(image_YXC)[:2]), side), resolution)
    size_2 = tf.shape(image_YXC)[:2]
    border = tf.pad((resolution - size_2)[:, None], [[0, 1], [1, 0]])
    whole = tf.pad((image_YXC / 255.0 - mean_C) / std_C, border)
    return {
      "image": tf.ensure_shape(whole, canvas.shape),
      "image_size": size_2,
      "boxes": tf.where(real_M[:, None], boxes_M4, 0.0),
      "box_labels": tf.where(real_M, labels_M, -1),
    }

  spec = {name: tf.TensorSpec(described[name].shape, described[name].dtype) for name in described}
  del spec["example_weights"]

  def made(index_B: tf.Tensor, one) -> dict[str, tf.Tensor]:
    data_B = tf.ensure_shape(tf.numpy_function(store.read, [index_B], tf.string, stateful=False), index_B.shape)
    rows = tf.gather(boxes_NM4, index_B), tf.gather(labels_NM, index_B)
    found = one(data_B, *rows)
    return found | {"example_weights": tf.ones_like(index_B, tf.float32)}

  def batch(index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    u_BN = examples.uniform(
      random.bits(random.row_keys(seed, epoch_B, index_B, tf.constant(0, tf.int64)), augment.numbers)
    )

    def one(row):
      data, boxes_M4, labels_M, u_N = row
      return padded(augment.apply((read(data), boxes_M4, labels_M >= 0), u_N), labels_M, resolution)

    return made(index_B, lambda *rows: tf.map_fn(one, (*rows, u_BN), fn_output_signature=spec))

  def evaluated(index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    def one(row):
      data, boxes_M4, labels_M = row
      image = _sizes.resized(read(data), tf.constant(shortest), resolution)
      return padded((image, boxes_M4, labels_M >= 0), labels_M, resolution)

    return made(index_B, lambda *rows: tf.map_fn(one, rows, fn_output_signature=spec))

  arguments = dict(resolution=resolution, channels=channels, boxes=boxes, mean=mean, std=std)
  return Task(
    name=label or f"{store.name}_object_detection",
    vocabulary=LabelVocabulary(classes),
    fingerprint=digest(
      task="object_detection.v1",
      images=store.fingerprint,
      classes=list(classes),
      augmentations=[plain(value) for value in augmentations],
      **arguments,
    ),
    num_examples=store.num_images,
    features=described,
    batch=batch,
    numbering=store.fingerprint,
    classes=classes,
    boxes=known,
    evaluated=evaluated,
  )
