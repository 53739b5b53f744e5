"""Changes of the pixels of one image, float32 [Y, X, C] in 0 to 255, as Pillow defines them."""

from __future__ import annotations

import numpy as np

from t5x_like.quiet_tensorflow import tf

_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601-2
# Pillow's smoothing kernel has 5 in the middle; less the pixel itself, that is 5 - 13.
_SHARPNESS = np.array([[1, 1, 1], [1, 5 - 13, 1], [1, 1, 1]], np.float32) / 13


def clip(image: tf.Tensor) -> tf.Tensor:
  """Clip the pixels to 0 to 255."""
  return tf.clip_by_value(image, 0.0, 255.0)


def linear(image: tf.Tensor, factor_C, offset_C) -> tf.Tensor:
  """Return image * factor + offset, with a factor and an offset for each channel."""
  shape = tf.shape(image)
  # Whole rows are multiplied, as it is slow to broadcast over three channels.
  factor_R = tf.tile(tf.cast(factor_C, tf.float32), shape[1:2])
  offset_R = tf.tile(tf.cast(offset_C, tf.float32), shape[1:2])
  rows = tf.reshape(image, [shape[0], shape[1] * shape[2]])
  return tf.reshape(rows * factor_R + offset_R, shape)


def to_grey(image: tf.Tensor) -> tf.Tensor:
  """Convert to grey, with as many channels as before."""
  if image.shape[-1] == 1:
    return image
  return image @ tf.constant([[luma] * 3 for luma in _LUMA])


def blend(base: tf.Tensor, image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
  """Interpolate from `base` to the image, or extrapolate past it where the factor is above 1."""
  return clip(base + factor * (image - base))


def brightness(image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
  """Blend with black."""
  return clip(image * factor)


def contrast(image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
  """Blend with the mean level of grey."""
  return blend(tf.reduce_mean(to_grey(image)), image, factor)


def saturation(image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
  """Blend with the grey image."""
  return blend(to_grey(image), image, factor)


def sharpness(image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
  """Blend with a smoothed image, towards or away from it; the border does not change."""
  kernel = tf.tile(tf.constant(_SHARPNESS)[..., None, None], [1, 1, image.shape[-1], 1])

  def smoothing() -> tf.Tensor:
    inner = tf.nn.depthwise_conv2d(image[None], kernel, [1] * 4, "VALID")[0]
    return tf.pad(inner, [[1, 1], [1, 1], [0, 0]])

  has_interior = tf.reduce_min(tf.shape(image)[:2]) > 2
  change = tf.cond(has_interior, smoothing, lambda: tf.zeros_like(image))
  return clip(image + (1.0 - factor) * change)


def posterize(image: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
  """Keep the highest `bits` of 8."""
  step = 2.0 ** (8.0 - tf.cast(bits, tf.float32))
  return tf.floor(tf.floor(image) / step) * step


def solarize(image: tf.Tensor, threshold: tf.Tensor) -> tf.Tensor:
  """Invert pixels at the threshold and above."""
  return select(image < threshold, image, 255.0 - image)


def select(condition: tf.Tensor, image: tf.Tensor, alternative: tf.Tensor) -> tf.Tensor:
  """Select elementwise from two images; much faster than `tf.where`, which broadcasts."""
  return tf.raw_ops.Select(condition=condition, x=image, y=alternative)


def autocontrast(image: tf.Tensor) -> tf.Tensor:
  """Stretch each channel to 0 to 255."""
  low_C = tf.reduce_min(image, [0, 1])
  high_C = tf.reduce_max(image, [0, 1])
  factor_C = 255.0 / (high_C - low_C)
  flat_C = high_C <= low_C
  return linear(image, tf.where(flat_C, 1.0, factor_C), tf.where(flat_C, 0.0, -low_C * factor_C))


def equalize(image: tf.Tensor) -> tf.Tensor:
  """Flatten the histogram of each channel, in whole levels."""
  channels = image.shape[-1]
  # The bin of each value, among the 256 levels of all channels.
  bins = tf.cast(linear(tf.round(image), tf.ones(channels), tf.range(channels) * 256), tf.int32)
  counts = tf.raw_ops.Bincount(
    arr=tf.reshape(bins, [-1]), size=256 * channels, weights=tf.constant([], tf.int32)
  )
  table_CL = _equalization_table(tf.reshape(counts, [channels, 256]))
  return tf.gather(tf.cast(tf.reshape(table_CL, [-1]), tf.float32), bins)


def _equalization_table(counts_CL: tf.Tensor) -> tf.Tensor:
  """Return the new level of each old one, int32 [C, 256], from the histograms."""
  levels_L = tf.range(256)
  last_C = tf.reduce_max(tf.where(counts_CL > 0, levels_L, 0), 1)
  step_C = (tf.reduce_sum(counts_CL, 1) - tf.gather(counts_CL, last_C, batch_dims=1)) // 255
  step_C1 = step_C[:, None]
  below_CL = tf.cumsum(counts_CL, 1, exclusive=True)
  table_CL = (below_CL + step_C1 // 2) // tf.maximum(step_C1, 1)
  return tf.where(step_C1 > 0, tf.clip_by_value(table_CL, 0, 255), levels_L)


def affine(image: tf.Tensor, matrix: list, fill: float = 128.0) -> tf.Tensor:
  """Apply an affine map: the pixel at (x, y) comes from (a x + b y + c, d x + e y + f).

  Args:
    image: float32 [Y, X, C].
    matrix: [a, b, c, d, e, f]; both positions are relative to the middle of the image.
    fill: the value of pixels that come from outside the image.
  """
  a, b, c, d, e, f = matrix
  shape = tf.shape(image)
  y = tf.cast(shape[0] - 1, tf.float32) / 2
  x = tf.cast(shape[1] - 1, tf.float32) / 2
  c = c + x - a * x - b * y
  f = f + y - d * x - e * y
  zero = tf.zeros([])
  transform = tf.stack([tf.cast(value, tf.float32) for value in (a, b, c, d, e, f, zero, zero)])
  return tf.raw_ops.ImageProjectiveTransformV3(
    images=image[None],
    transforms=transform[None],
    output_shape=shape[:2],
    fill_value=fill,
    interpolation="BILINEAR",
    fill_mode="CONSTANT",
  )[0]


def blur(image: tf.Tensor, sigma: tf.Tensor, radius: int = 5) -> tf.Tensor:
  """Blur by a Gaussian of standard deviation `sigma` pixels, cut off after `radius`.

  The border is reflected, and reflected again in an image smaller than the radius.
  """
  kernel = tf.nn.softmax(-(tf.range(-radius, radius + 1, dtype=tf.float32) ** 2) / (2 * sigma**2))
  channels = image.shape[-1]
  size = 2 * radius + 1
  for axis in (0, 1):
    n = tf.shape(image)[axis]
    index = tf.range(-radius, n + radius) % (2 * n)
    image = tf.gather(image, tf.minimum(index, 2 * n - 1 - index), axis=axis)
  images = image[None]
  for shape in ((size, 1), (1, size)):
    filters = tf.tile(tf.reshape(kernel, (*shape, 1, 1)), [1, 1, channels, 1])
    images = tf.nn.depthwise_conv2d(images, filters, [1, 1, 1, 1], "VALID")
  return images[0]
