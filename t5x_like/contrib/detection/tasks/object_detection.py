"""Object detection in images (Carion et al. 2020).

  config.task = {"name": "object_detection", "source":
                 "coco:train=annotations/instances_train2017.json,validation=…", "resolution": 1333,
                 "shortest": 800, "augmentations": ["flip", "crop", "resize"]}

The features of an example:

- `image`, float32 [R, R, C]: normalised, padded below and on the right.
- `image_size`, int32 [2]: height and width without padding.
- `boxes`, float32 [M, 4]: ymin, xmin, ymax, xmax as fractions of that size.
- `box_labels`, int32 [M]: the classes of the boxes, -1 for no box.
- `example_weights`, float32 []: 1 for an image.

Training augments an image and its boxes anew in every epoch (`data/box_augmentations`), as a
function of the image, the epoch and the seed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from t5x_like import slots
from t5x_like.contrib.detection import box_pictures
from t5x_like.contrib.detection.data import box_augmentations
from t5x_like.contrib.detection.data import boxes as image_boxes
from t5x_like.contrib.detection.data.box_augmentations import Boxed, _sizes
from t5x_like.corpora.sources import check_split, open_source, parse_split
from t5x_like.data.augmentations import chain
from t5x_like.data.features import Feature, Features
from t5x_like.data.images import examples, pictures
from t5x_like.data.images import store as stores
from t5x_like.data.source import SourceArguments
from t5x_like.data.task import Task, unfingerprinted
from t5x_like.quiet_tensorflow import tf
from t5x_like.slots import PositiveInt
from t5x_like.vocabularies import Vocabulary
from t5x_like.vocabularies.kinds.labels import LabelVocabulary

# On the built-in corpus, for `:debug`.
BUILT_IN = {"source": "digit_scenes"}
# Models of this task have no resolution of their own, which a laptop form would reduce.
ANY_RESOLUTION = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class DetectionTask(Task):
  """A task of images with boxes.

  Attributes:
    boxes: the boxes of all examples.
  """

  boxes: image_boxes.Boxes

  def draw_predictions(
    self,
    pixels_NYXC: np.ndarray,
    batch: dict[str, np.ndarray],
    predictions: Sequence[dict[str, Any]],
  ) -> tuple[str, str, Any] | None:
    """Draw the detections in a batch's images.

    Args:
      pixels_NYXC: the images, from 0 to 255.
      batch: the batch, with `example_index`.
      predictions: the rows of an evaluator.
    Returns:
      (the kind of picture, its title, a Pillow image); None if no row is about these images.
    """
    row_by_image = {}
    for row in predictions:
      if {"objects", "detections"} <= row.keys():
        row_by_image[row["image"]] = row
    index_N = [index for index in batch["example_index"].tolist() if index in row_by_image]
    if not index_N:
      return None
    N = len(index_N)
    sheet = box_pictures.draw_boxes(
      pixels_NYXC[:N],
      batch["image_size"][:N],
      [row_by_image[index] for index in index_N],
      self.boxes.pixels[index_N],
      self.classes,
    )
    return "boxes", "objects (dashed) and detections", sheet


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(SourceArguments):
  """The arguments of object detection.

  The source is `voc:`, `coco:`, `boxes:`, `tfds:` or `digit_scenes`.

  Attributes:
    resolution: height and width of the padded images; larger images are resized to fit.
    shortest: the shorter side of an image in evaluations; it is reduced where the longer side would
      exceed `resolution`.
    channels: 3 for RGB, 1 for grey; images of the other kind are converted.
    boxes: the maximum number of boxes in an image; an image with more is refused.
    augmentations: the augmentations of training images, in order: modules of
      `data/box_augmentations`, by name or as {"name": …} with arguments. Images that are too large
      afterwards are resized to fit.
    classes: the names of the classes, in the order of their numbers; by default the source's.
    buckets: the maximum number of heights, and of widths, to which training batches are cut, see
      `contrib/detection/training/image_buckets.py`; 1 means no cutting.
    mean, std: mean and deviation for normalising pixels in 0 to 1; by default ImageNet's.
    image_field, objects_field: the fields of a record that hold the image and its objects.
  """

  resolution: PositiveInt = 1333
  shortest: PositiveInt = 800
  channels: Literal[1, 3] = 3
  boxes: PositiveInt = 100
  augmentations: tuple = ("flip", "crop", "resize")
  classes: tuple[str, ...] = ()
  buckets: PositiveInt = unfingerprinted("it only cuts padding off batches", default=1)
  mean: tuple[float, ...] = pictures.IMAGENET_MEAN
  std: tuple[float, ...] = pictures.IMAGENET_STD
  image_field: str = "image"
  objects_field: str = "objects"

  def features(self, vocabulary: Vocabulary) -> Features:
    return {
      "image": Feature((self.resolution, self.resolution, self.channels), "float32"),
      "image_size": Feature((2,), "int32"),
      "boxes": Feature((self.boxes, 4), "float32"),
      "box_labels": Feature((self.boxes,), "int32"),
      "example_weights": Feature((), "float32"),
    }

  def build(self) -> DetectionTask:
    """Prepare the images and return the task.

    Raises:
      UserError: an unusable source or argument, no usable image, an image with more than `boxes`
        boxes, a file that changed since it was prepared.
    """
    records = open_source(
      self.source, fields=(self.image_field, self.objects_field), data_dir=self.data_dir
    )
    split_name, _ = parse_split(self.split)
    check_split(records, split_name)
    notes, classes = image_boxes.make_notes(
      records, self.objects_field, self.image_field, self.classes
    )
    store = stores.open_store(
      **self.store_arguments, image_field=self.image_field, label_field=None, notes=notes
    )
    pixels = examples.Pixels(store, self.channels, self.mean, self.std)
    stored_boxes = image_boxes.read_boxes(store)
    vocabulary = LabelVocabulary(classes)
    features = self.features(vocabulary)
    detection = _DetectionExamples(self, features, pixels, stored_boxes)
    return DetectionTask(
      name=self.label or f"{store.name}_object_detection",
      vocabulary=vocabulary,
      fingerprint=self.fingerprint(
        "object_detection.v3",
        images=store.fingerprint,
        classes=classes,
        mean=pixels.mean,
        std=pixels.std,
      ),
      num_examples=store.num_images,
      features=features,
      batch=detection.batch,
      numbering=store.fingerprint,
      classes=classes,
      boxes=stored_boxes,
      buckets=self.buckets,
      bucket_module="image_buckets",
      eval_batch=detection.eval_batch,
    )


class _DetectionExamples:
  """Makes batches of images with boxes.

  Args:
    arguments: the arguments of the task.
    features: the features of an example.
    pixels: the pixels of the store.
    stored_boxes: the boxes of the store.
  """

  def __init__(
    self,
    arguments: Arguments,
    features: Features,
    pixels: examples.Pixels,
    stored_boxes: image_boxes.Boxes,
  ):
    self._pixels = pixels
    self._resolution = arguments.resolution
    self._shortest = arguments.shortest
    self._num_boxes = arguments.boxes
    steps = []
    for value in arguments.augmentations:
      steps.append(
        slots.make(
          "config.task.augmentations",
          value,
          box_augmentations,
          "make",
          resolution=arguments.resolution,
        )
      )
    self._augmentation = chain(steps)
    boxes_NM4, labels_NM = stored_boxes.pad_learned(self._num_boxes)
    self._boxes_NM4 = tf.constant(boxes_NM4)
    self._labels_NM = tf.constant(labels_NM)
    self._image_shape = features["image"].shape
    self._specs = {}
    for name, feature in features.items():
      if name != "example_weights":
        self._specs[name] = tf.TensorSpec(feature.shape, feature.dtype)

  def batch(self, index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    """Return augmented images; see `Task.batch`."""
    u_BN = examples.RandomDraws(seed, epoch_B, index_B).uniform(0, self._augmentation.numbers)
    return self._map_images(index_B, self._augmentation.apply, u_BN)

  def eval_batch(self, index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    """Return images without augmentation; see `Task.eval_batch`."""

    def resize(boxed: Boxed) -> Boxed:
      image_YXC, boxes_M4, real_M = boxed
      shortest = tf.constant(self._shortest)
      return _sizes.resize_sides(image_YXC, shortest, self._resolution), boxes_M4, real_M

    return self._map_images(index_B, resize)

  def _map_images(
    self, index_B: tf.Tensor, transform: Callable[..., Boxed], *draws_B: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    """Read images, transform each with its boxes, and pad them.

    Args:
      transform: a function `(boxed, *draws)` of an image, with its boxes and random draws.
      draws_B: the random draws for each image, if `transform` takes any.
    """

    def read(row: tuple[tf.Tensor, ...]) -> dict[str, tf.Tensor]:
      data, boxes_M4, labels_M, *draws = row
      boxed = (self._pixels.decode(data), boxes_M4, labels_M >= 0)
      return self._pad(transform(boxed, *draws), labels_M)

    missing_boxes = self._num_boxes - self._labels_NM.shape[1]
    boxes_BM4 = tf.gather(self._boxes_NM4, index_B)
    boxes_BM4 = tf.pad(boxes_BM4, [[0, 0], [0, missing_boxes], [0, 0]])
    labels_BM = tf.gather(self._labels_NM, index_B)
    labels_BM = tf.pad(labels_BM, [[0, 0], [0, missing_boxes]], constant_values=-1)
    rows = (self._pixels.read(index_B), boxes_BM4, labels_BM, *draws_B)
    features = tf.map_fn(read, rows, fn_output_signature=self._specs)
    features["example_weights"] = tf.ones_like(index_B, tf.float32)
    return features

  def _pad(self, boxed: Boxed, labels_M: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return the features of an image, resized to fit if it is too large."""
    image_YXC, boxes_M4, real_M = boxed
    shorter_side = tf.reduce_min(tf.shape(image_YXC)[:2])
    image_YXC = _sizes.resize_sides(
      image_YXC, tf.minimum(shorter_side, self._resolution), self._resolution
    )
    size_2 = tf.shape(image_YXC)[:2]
    padding_32 = tf.pad((self._resolution - size_2)[:, None], [[0, 1], [1, 0]])
    padded_RRC = tf.pad(self._pixels.normalize(image_YXC), padding_32)
    return {
      "image": tf.ensure_shape(padded_RRC, self._image_shape),
      "image_size": size_2,
      "boxes": tf.where(real_M[:, None], boxes_M4, 0.0),
      "box_labels": tf.where(real_M, labels_M, -1),
    }
