"""Sizes of images by their shorter and longer side, and parts of images with the boxes in them."""

from __future__ import annotations

from t5x_like.data.augmentations import _resize
from t5x_like.data.box_augmentations import Boxed
from t5x_like.data.quiet_tensorflow import tf


def resized(image_YXC: tf.Tensor, shortest: tf.Tensor, longest: int) -> tf.Tensor:
  """Resize the shorter side to `shortest` pixels, or less so that the longer side is at most
  `longest`."""
  sides = tf.cast(tf.shape(image_YXC)[:2], tf.float64)
  low = tf.reduce_min(sides)
  high = tf.reduce_max(sides)
  wanted = tf.minimum(tf.cast(shortest, tf.float64), tf.cast(longest, tf.float64) * low / high)
  # as in DETR's code
  short = tf.round(wanted)
  long = tf.floor(wanted * high / low)
  long = tf.minimum(tf.where(short == low, high, long), tf.cast(longest, tf.float64))
  return _of_size(image_YXC, tf.where(sides == low, short, long))


def scaled(image_YXC: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
  return _of_size(image_YXC, tf.round(tf.cast(tf.shape(image_YXC)[:2], tf.float32) * scale))


def _of_size(image_YXC: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
  shape = tf.shape(image_YXC)[:2]
  size = tf.maximum(tf.cast(size, tf.int32), 1)
  made = tf.cond(
    tf.reduce_all(size == shape),
    lambda: image_YXC,
    lambda: _resize.resized(image_YXC, size, "bilinear"),
  )
  return tf.ensure_shape(made, [None, None, image_YXC.shape[-1]])


def part(boxed: Boxed, box_4: tf.Tensor, centres: bool) -> Boxed:
  """Cut out a part of the image, int32 (y, x, height, width), and clip the boxes that reach into
  it.

  Args:
    centres: whether to keep only boxes whose middle is in the part.
  """
  image_YXC, boxes_M4, real_M = boxed
  y, x, h, w = tf.unstack(box_4)
  size_4 = tf.cast(tf.tile(tf.shape(image_YXC)[:2], [2]), tf.float32)
  start_4 = tf.cast(tf.stack([y, x, y, x]), tf.float32)
  moved_M4 = (boxes_M4 * size_4 - start_4) / tf.cast(tf.stack([h, w, h, w]), tf.float32)
  middle_M2 = (moved_M4[:, :2] + moved_M4[:, 2:]) / 2
  cut_M4 = tf.clip_by_value(moved_M4, 0.0, 1.0)
  kept_M = real_M & tf.reduce_all(cut_M4[:, 2:] > cut_M4[:, :2], axis=1)
  if centres:
    kept_M &= tf.reduce_all((middle_M2 >= 0) & (middle_M2 < 1), axis=1)
  return image_YXC[y : y + h, x : x + w], cut_M4, kept_M
