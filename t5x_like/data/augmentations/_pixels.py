"""Changes of the pixels of one image, float32 [Y, X, C] in 0 to 255, as Pillow defines them."""

from __future__ import annotations

from t5x_like.data.quiet_tensorflow import tf

_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601-2


def clipped(image: tf.Tensor) -> tf.Tensor:
  return tf.clip_by_value(image, 0.0, 255.0)


def grey(image: tf.Tensor) -> tf.Tensor:
  """Convert to grey, [Y, X, 1]; a grey image stays as it is."""
  return image if image.shape[-1] == 1 else tf.tensordot(image, tf.constant(_LUMA), 1)[..., None]


def blended(other: tf.Tensor, image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
  return clipped(other + factor * (image - other))


def brightness(image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
  return clipped(image * factor)


def contrast(image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
  return blended(tf.reduce_mean(grey(image)) * tf.ones_like(image), image, factor)


def saturation(image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
  return blended(grey(image) * tf.ones_like(image), image, factor)


def sharpness(image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
  """Blend with a smoothed image, towards or away from it; the border stays."""
  kernel = tf.constant([[1.0, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
  kernel = tf.tile(kernel[..., None, None], [1, 1, image.shape[-1], 1])
  shape = tf.shape(image)
  smooth = tf.nn.depthwise_conv2d(image[None], kernel, [1, 1, 1, 1], "SAME")[0]
  rows, columns = tf.range(shape[0])[:, None, None], tf.range(shape[1])[None, :, None]
  inner = (rows > 0) & (rows < shape[0] - 1) & (columns > 0) & (columns < shape[1] - 1)
  return blended(tf.where(inner, smooth, image), image, factor)


def posterize(image: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
  """Keep the highest `bits` of 8."""
  step = 2.0 ** (8.0 - tf.cast(bits, tf.float32))
  return tf.floor(tf.floor(image) / step) * step


def solarize(image: tf.Tensor, threshold: tf.Tensor) -> tf.Tensor:
  """Invert pixels at the threshold and above."""
  return tf.where(image < threshold, image, 255.0 - image)


def autocontrast(image: tf.Tensor) -> tf.Tensor:
  """Stretch each channel to 0 to 255."""
  low, high = tf.reduce_min(image, [0, 1]), tf.reduce_max(image, [0, 1])
  return tf.where(high > low, (image - low) * 255.0 / tf.maximum(high - low, 1e-6), image)


def equalize(image: tf.Tensor) -> tf.Tensor:
  """Flatten the histogram of each channel, in whole levels."""
  levels = tf.cast(tf.round(image), tf.int32)
  return tf.stack([_equalized(channel) for channel in tf.unstack(levels, image.shape[-1], -1)], -1)


def _equalized(levels: tf.Tensor) -> tf.Tensor:
  counts = tf.math.bincount(tf.reshape(levels, [-1]), minlength=256, maxlength=256)
  last = counts[tf.reduce_max(levels)]
  step = (tf.reduce_sum(counts) - last) // 255
  below = tf.cumsum(counts, exclusive=True)
  table = tf.clip_by_value((below + step // 2) // tf.maximum(step, 1), 0, 255)
  return tf.cast(tf.where(step > 0, tf.gather(table, levels), levels), tf.float32)


def affine(image: tf.Tensor, matrix: list, fill: float = 128.0) -> tf.Tensor:
  """Take the pixel at (x, y) from (a x + b y + c, d x + e y + f) of the image, both relative to its middle."""
  a, b, c, d, e, f = matrix
  shape = tf.shape(image)
  y, x = (tf.cast(n - 1, tf.float32) / 2 for n in (shape[0], shape[1]))
  c, f = c + x - a * x - b * y, f + y - d * x - e * y
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
  """Blur by a Gaussian of standard deviation `sigma` pixels, cut off after `radius`; the border is reflected."""
  kernel = tf.nn.softmax(-(tf.range(-radius, radius + 1, dtype=tf.float32) ** 2) / (2 * sigma**2))
  channels, size = image.shape[-1], 2 * radius + 1
  wide = tf.pad(image, [[radius, radius], [radius, radius], [0, 0]], "SYMMETRIC")[None]
  for shape in ((size, 1), (1, size)):
    filters = tf.tile(tf.reshape(kernel, (*shape, 1, 1)), [1, 1, channels, 1])
    wide = tf.nn.depthwise_conv2d(wide, filters, [1, 1, 1, 1], "VALID")
  return wide[0]
