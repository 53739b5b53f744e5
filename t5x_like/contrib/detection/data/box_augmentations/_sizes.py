"""Sizes of images by their shorter and longer side, and parts of images with the boxes in them."""

from __future__ import annotations

from t5x_like.contrib.detection.data.box_augmentations import Boxed
from t5x_like.data.augmentations import _resize
from t5x_like.quiet_tensorflow import tf


def resize_sides(image_YXC: tf.Tensor, shortest: tf.Tensor, longest: int) -> tf.Tensor:
  """Resize the shorter side to `shortest` pixels, or less to keep the longer within `longest`."""
  sides = tf.cast(tf.shape(image_YXC)[:2], tf.float64)
  low = tf.reduce_min(sides)
  high = tf.reduce_max(sides)
  target = tf.minimum(tf.cast(shortest, tf.float64), tf.cast(longest, tf.float64) * low / high)
  # Rounded as in DETR's code.
  short = tf.round(target)
  long = tf.floor(target * high / low)
  long = tf.minimum(tf.where(short == low, high, long), tf.cast(longest, tf.float64))
  return _resize_to(image_YXC, tf.where(sides == low, short, long))


def scale(image_YXC: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
  """Multiply both sides of the image by a factor."""
  size_2 = tf.cast(tf.shape(image_YXC)[:2], tf.float32)
  return _resize_to(image_YXC, tf.round(size_2 * factor))


def _resize_to(image_YXC: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
  shape = tf.shape(image_YXC)[:2]
  size = tf.maximum(tf.cast(size, tf.int32), 1)
  resized = tf.cond(
    tf.reduce_all(size == shape),
    lambda: image_YXC,
    lambda: _resize.resize(image_YXC, size, "bilinear"),
  )
  return tf.ensure_shape(resized, [None, None, image_YXC.shape[-1]])


def crop(boxed: Boxed, box_4: tf.Tensor, centres: bool) -> Boxed:
  """Crop the image to a part, and clip the boxes that reach into it.

  Args:
    boxed: the image and its boxes.
    box_4: the part, int32 (y, x, height, width).
    centres: whether to keep only boxes whose middle is in the part.
  """
  image_YXC, boxes_M4, real_M = boxed
  y, x, h, w = tf.unstack(box_4)
  size_4 = tf.cast(tf.tile(tf.shape(image_YXC)[:2], [2]), tf.float32)
  start_4 = tf.cast(tf.stack([y, x, y, x]), tf.float32)
  moved_M4 = (boxes_M4 * size_4 - start_4) / tf.cast(tf.stack([h, w, h, w]), tf.float32)
  middle_M2 = (moved_M4[:, :2] + moved_M4[:, 2:]) / 2
  cut_M4 = tf.clip_by_value(moved_M4, 0.0, 1.0)
  inside_M = real_M & tf.reduce_all(cut_M4[:, 2:] > cut_M4[:, :2], axis=1)
  if centres:
    inside_M &= tf.reduce_all((middle_M2 >= 0) & (middle_M2 < 1), axis=1)
  return image_YXC[y : y + h, x : x + w], cut_M4, inside_M
