"""Resizing of one image with an antialiasing kernel, one axis after the other."""

from __future__ import annotations

from collections.abc import Sequence

from t5x_like.quiet_tensorflow import tf

KERNELS = {"bilinear": "triangle", "bicubic": "keyscubic", "lanczos": "lanczos3"}


def resize(image_YXC: tf.Tensor, size_2, method: str) -> tf.Tensor:
  """Resize an image to a height and width: float32, as `tf.image.resize` does with `antialias`."""
  return resize_and_crop(image_YXC, size_2, size_2, (0, 0), method)


def resize_and_crop(
  image_YXC: tf.Tensor, size_2, resized_2, start_2: Sequence, method: str
) -> tf.Tensor:
  """Resize an image to `resized`, and return `size` pixels from `start` on: float32 [*size, C].

  Each axis is resized as the rows of an image that is one pixel wide and has all values of a row as
  its channels. The operation's loop over channels is fast, its loop over columns is not, and the
  result is the same.
  """
  for axis in (0, 1):
    shape = tf.shape(image_YXC)
    channels = image_YXC.shape[-1]
    if method == "nearest":
      position = tf.cast(start_2[axis] + tf.range(size_2[axis]), tf.int64)
      old = tf.cast(shape[axis], tf.int64)
      new = tf.cast(resized_2[axis], tf.int64)
      image_YXC = tf.gather(image_YXC, (2 * position + 1) * old // (2 * new), axis=axis)
      continue
    scale = tf.cast(resized_2[axis], tf.float32) / tf.cast(shape[0], tf.float32)
    rows = tf.raw_ops.ScaleAndTranslate(
      images=tf.reshape(image_YXC, [1, shape[0], 1, shape[1] * channels]),
      size=tf.stack([size_2[axis], 1]),
      scale=tf.stack([scale, 1.0]),
      translation=tf.stack([-tf.cast(start_2[axis], tf.float32), 0.0]),
      kernel_type=KERNELS[method],
      antialias=True,
    )
    image_YXC = tf.transpose(tf.reshape(rows, [size_2[axis], shape[1], channels]), [1, 0, 2])
  return image_YXC
