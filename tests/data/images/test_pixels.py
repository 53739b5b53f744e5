"""Images are decoded as Pillow does, and resized equally with and without TensorFlow."""

import io

import numpy as np
import pytest
from PIL import Image

from t5x_like.corpora import image_files
from t5x_like.data.images import examples, pictures
from t5x_like.quiet_tensorflow import tf


@pytest.mark.parametrize("encoding", ["4:4:4", "4:2:0", "grey", "progressive", "PNG"])
def test_full_and_cropped_images_are_decoded_as_pillow_does(encoding):
  noise = np.random.default_rng(0).integers(0, 256, (9, 11, 3)).astype(np.uint8)
  image = Image.fromarray(noise).resize((83, 61))
  if encoding == "grey":
    image = image.convert("L")
  options = {
    "4:4:4": {"subsampling": 0},
    "4:2:0": {"subsampling": 2},
    "progressive": {"progressive": True},
  }
  file = io.BytesIO()
  file_format = "PNG" if encoding == "PNG" else "JPEG"
  image.save(file, file_format, **options.get(encoding, {}))
  pixels = examples.Pixels(None, 3, (0.5,), (0.5,))
  file_bytes = tf.constant(file.getvalue())
  full_image = pixels.decode(file_bytes).numpy()
  np.testing.assert_array_equal(full_image, np.asarray(Image.open(file).convert("RGB")))
  for y, x, h, w in ((0, 0, 61, 83), (7, 13, 29, 31), (60, 82, 1, 1), (0, 33, 61, 17)):
    crop = pixels.decode(file_bytes, lambda _, box=(y, x, h, w): tf.constant(box))
    np.testing.assert_array_equal(crop, full_image[y : y + h, x : x + w])


def resize_and_crop(image: np.ndarray, sides: tuple[int, int], crop: float) -> np.ndarray:
  """Resize with sides rounded down, as timm and torchvision do, and crop the middle."""
  shape = np.array(image.shape[:2])
  min_size = np.array([int(side / crop) for side in sides])
  axis = (min_size / shape).argmax()
  size = np.maximum(shape * min_size[axis] // shape[axis], min_size)
  y, x = (size - sides) // 2
  resized = tf.image.resize(image, size, "bicubic", antialias=True).numpy().clip(0.0, 255.0)
  return resized[y : y + sides[0], x : x + sides[1]]


def fit_with_and_without_tensorflow(image: np.ndarray, **options) -> np.ndarray:
  """Fit an image to a resolution with TensorFlow and with NumPy; assert that the results agree."""
  fitted = examples.fit_to_resolution(tf.constant(image), **options).numpy()
  np.testing.assert_allclose(pictures.fit_to_resolution(image, **options), fitted, atol=2e-3)
  return fitted


@pytest.mark.parametrize(
  "shape, sides, crop",
  [
    ((9, 7, 3), (8, 8), 1.0),
    ((50, 31, 1), (16, 16), 0.875),
    ((8, 8, 3), (8, 8), 1.0),
    ((1, 1, 3), (4, 4), 0.5),
    ((50, 31, 3), (12, 18), 0.875),
    ((1, 20_000, 3), (64, 64), 1.0),  # takes gigabytes if it is resized before it is cropped
  ],
)
def test_middle_of_an_image_equals_timms(shape, sides, crop):
  image = np.random.default_rng(0).integers(0, 256, shape).astype(np.float32)
  options = dict(sides_2=sides, crop=crop, mean=(0.5,) * shape[-1])
  middle = fit_with_and_without_tensorflow(image, **options, fit="cut")
  if max(shape) < 100:
    np.testing.assert_allclose(middle, resize_and_crop(image, sides, crop), atol=2e-3)
  for fit, method in (("squeezed_cut", "bilinear"), ("cut", "lanczos"), ("padded", "nearest")):
    fit_with_and_without_tensorflow(image, **options, fit=fit, method=method)


def resize_bicubic(image: np.ndarray, sides) -> np.ndarray:
  return tf.image.resize(image, sides, "bicubic", antialias=True).numpy().clip(0.0, 255.0)


@pytest.mark.parametrize(
  "shape, sides, inner_sides", [((20, 10, 3), (8, 12), (8, 4)), ((3, 12, 1), (8, 8), (2, 8))]
)
def test_padded_image_keeps_its_aspect_ratio_between_bars_of_the_mean(shape, sides, inner_sides):
  image = np.random.default_rng(0).integers(0, 256, shape).astype(np.float32)
  mean = (0.25, 0.5, 0.75)[: shape[-1]]
  padded = fit_with_and_without_tensorflow(image, sides_2=sides, crop=0.5, mean=mean, fit="padded")
  y = (sides[0] - inner_sides[0]) // 2
  x = (sides[1] - inner_sides[1]) // 2
  inside = np.s_[y : y + inner_sides[0], x : x + inner_sides[1]]
  np.testing.assert_allclose(padded[inside], resize_bicubic(image, inner_sides), atol=2e-3)
  padded[inside] = 255 * np.array(mean)
  assert (padded == np.float32(255 * np.array(mean))).all()


@pytest.mark.parametrize("shape, sides", [((20, 10, 3), (8, 12)), ((3, 12, 1), (8, 8))])
def test_a_squeezed_image_fills_the_resolution(shape, sides):
  image = np.random.default_rng(0).integers(0, 256, shape).astype(np.float32)
  mean = (0.5,) * shape[-1]
  squeezed = fit_with_and_without_tensorflow(
    image, sides_2=sides, crop=0.5, mean=mean, fit="squeezed"
  )
  np.testing.assert_allclose(squeezed, resize_bicubic(image, sides), atol=2e-3)


GREY = np.arange(0, 250, 5, dtype=np.int32).reshape(5, 10)


def encode_tiff(pixels: np.ndarray) -> bytes:
  file = io.BytesIO()
  Image.fromarray(pixels).save(file, "TIFF")
  return file.getvalue()


@pytest.mark.parametrize(
  "stored",
  [
    GREY,  # 8-bit values in 32 bits
    GREY << 8,  # 16-bit values in 32 bits
    (GREY << 8).astype(np.uint16),
    GREY.astype(np.float32),
    GREY.astype(np.float32) / 255,  # shares of white
    GREY.astype(np.float32) / 255 * 1.01 - 0.002,  # shares that overshoot
  ],
)
def test_pixels_of_32_bits_are_scaled(stored):
  pixels = image_files.read_pixels(encode_tiff(stored), 1)
  np.testing.assert_allclose(pixels[..., 0], GREY, atol=3)


@pytest.mark.parametrize(
  "stored",
  [
    GREY << 20,
    GREY - 1,
    np.full((2, 2), np.nan, np.float32),
    GREY.astype(np.float32) * 100,
  ],
)
def test_pixels_of_32_bits_out_of_range_are_refused(stored):
  with pytest.raises(image_files.UnusableImage, match="32-bit pixels beyond 0 to"):
    image_files.read_pixels(encode_tiff(stored), 1)


@pytest.mark.parametrize(
  ("mode", "file_format"),
  [("CMYK", "TIFF"), ("LA", "PNG"), ("P", "PNG"), ("RGBA", "PNG"), ("1", "PNG")],
)
def test_images_of_other_modes_are_converted_to_grey(mode, file_format):
  grey = Image.fromarray(np.where(GREY > 100, 255, 0).astype(np.uint8))
  file = io.BytesIO()
  extra = {"transparency": 0} if mode == "P" else {}
  grey.convert("RGB").convert(mode).save(file, file_format, **extra)
  pixels = image_files.read_pixels(file.getvalue(), 1)
  np.testing.assert_allclose(pixels[..., 0], np.asarray(grey), atol=3)
