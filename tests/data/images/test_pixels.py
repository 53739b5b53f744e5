"""The pixels of a file and of the middle of an image: as Pillow's, in parts as in the whole,
without TensorFlow too."""

import io

import numpy as np
import pytest
from PIL import Image

from t5x_like.data.box_augmentations import _sizes
from t5x_like.data.images import examples, pictures
from t5x_like.data.quiet_tensorflow import tf


@pytest.mark.parametrize("form", ["4:4:4", "4:2:0", "grey", "progressive", "PNG"])
def test_a_part_of_a_file_is_decoded_as_the_whole_is_and_as_pillow_does(form):
  image = Image.fromarray(
    np.random.default_rng(0).integers(0, 256, (9, 11, 3)).astype(np.uint8)
  ).resize((83, 61))
  options = {
    "4:4:4": {"subsampling": 0},
    "4:2:0": {"subsampling": 2},
    "progressive": {"progressive": True},
  }
  file = io.BytesIO()
  image.convert("L" if form == "grey" else "RGB").save(
    file, "PNG" if form == "PNG" else "JPEG", **options.get(form, {})
  )
  pixels = examples.Pixels(None, 3, (0.5,), (0.5,))
  data = tf.constant(file.getvalue())
  whole = pixels.decode(data).numpy()
  assert np.array_equal(whole, np.asarray(Image.open(file).convert("RGB")))
  for y, x, h, w in ((0, 0, 61, 83), (7, 13, 29, 31), (60, 82, 1, 1), (0, 33, 61, 17)):
    assert np.array_equal(
      pixels.decode(data, lambda _, box=(y, x, h, w): tf.constant(box)),
      whole[y : y + h, x : x + w],
    )


def whole_then_cut(image: np.ndarray, sides: tuple[int, int], crop: float) -> np.ndarray:
  """Resize as timm and torchvision do, which round all sides down, and cut out the middle."""
  shape = np.array(image.shape[:2])
  cover = np.array([int(side / crop) for side in sides])
  axis = (cover / shape).argmax()
  size = np.maximum(shape * cover[axis] // shape[axis], cover)
  y, x = (size - sides) // 2
  made = tf.image.resize(image, size, "bicubic", antialias=True).numpy().clip(0.0, 255.0)
  return made[y : y + sides[0], x : x + sides[1]]


def test_the_middle_of_an_image_is_the_same_without_tensorflow():
  for shape, sides, crop in (
    ((9, 7, 3), (8, 8), 1.0),
    ((50, 31, 1), (16, 16), 0.875),
    ((8, 8, 3), (8, 8), 1.0),
    ((1, 1, 3), (4, 4), 0.5),
    ((50, 31, 3), (12, 18), 0.875),
    ((1, 20_000, 3), (64, 64), 1.0),  # whole, it would take gigabytes
  ):
    image = np.random.default_rng(0).integers(0, 256, shape).astype(np.float32)
    given = dict(sides_2=sides, crop=crop, mean=(0.5,) * shape[-1])
    expected = examples.fit_to_resolution(tf.constant(image), **given, fit="cut").numpy()
    if max(shape) < 100:
      np.testing.assert_allclose(expected, whole_then_cut(image, sides, crop), atol=2e-3)
    np.testing.assert_allclose(pictures.fit_to_resolution(image, **given), expected, atol=2e-3)
    for fit, method in (("squeezed_cut", "bilinear"), ("cut", "lanczos"), ("padded", "nearest")):
      other = examples.fit_to_resolution(
        tf.constant(image), **given, fit=fit, method=method
      ).numpy()
      np.testing.assert_allclose(
        pictures.fit_to_resolution(image, **given, fit=fit, method=method), other, atol=2e-3
      )


@pytest.mark.parametrize(
  "shape, sides, seen", [((20, 10, 3), (8, 12), (8, 4)), ((3, 12, 1), (8, 8), (2, 8))]
)
def test_a_whole_image_keeps_its_aspect_ratio_between_bars_of_the_mean(shape, sides, seen):
  image = np.random.default_rng(0).integers(0, 256, shape).astype(np.float32)
  given = dict(sides_2=sides, crop=0.5, mean=(0.25, 0.5, 0.75)[: shape[-1]])
  made = examples.fit_to_resolution(tf.constant(image), **given, fit="padded").numpy()
  np.testing.assert_allclose(
    pictures.fit_to_resolution(image, **given, fit="padded"), made, atol=2e-3
  )
  y, x = ((side - of) // 2 for side, of in zip(sides, seen))
  inside = np.s_[y : y + seen[0], x : x + seen[1]]
  expected = tf.image.resize(image, seen, "bicubic", antialias=True).numpy().clip(0.0, 255.0)
  np.testing.assert_allclose(made[inside], expected, atol=2e-3)
  made[inside] = 255 * np.array(given["mean"])
  assert (made == np.float32(255 * np.array(given["mean"]))).all()
  squeezed = examples.fit_to_resolution(tf.constant(image), **given, fit="squeezed").numpy()
  whole = tf.image.resize(image, sides, "bicubic", antialias=True).numpy().clip(0.0, 255.0)
  np.testing.assert_allclose(squeezed, whole, atol=2e-3)
  np.testing.assert_allclose(
    pictures.fit_to_resolution(image, **given, fit="squeezed"), whole, atol=2e-3
  )


@pytest.mark.parametrize(
  "shape, shortest, longest", [((9, 7, 3), 5, 8), ((31, 50, 1), 40, 60), ((8, 8, 3), 8, 8)]
)
def test_an_image_for_a_detector_is_the_same_without_tensorflow(shape, shortest, longest):
  assert pictures.resize_sides(np.zeros((48, 77, 1)), 40, 99).shape == (40, 64, 1)  # 64.17
  assert pictures.resize_sides(np.zeros((77, 48, 1)), 41, 60).shape == (60, 37, 1)  # 37.4
  image = np.random.default_rng(0).integers(0, 256, shape).astype(np.float32)
  expected = _sizes.resize_sides(tf.constant(image), tf.constant(shortest), longest).numpy()
  np.testing.assert_allclose(pictures.resize_sides(image, shortest, longest), expected, atol=2e-3)


GREY = np.arange(0, 250, 5, dtype=np.int32).reshape(5, 10)


@pytest.mark.parametrize(
  ("stored", "expected"),
  [
    (GREY, GREY),  # 8 bits in 32
    (GREY << 8, GREY),  # 16 bits in 32
    (GREY.astype(np.float32), GREY),
    (GREY.astype(np.float32) / 255, GREY),  # shares of white
    (GREY.astype(np.float32) / 255 * 1.01 - 0.002, GREY),  # which overshoot
    ((GREY << 8).astype(np.uint16), GREY),
    (GREY << 20, None),
    (GREY - 1, None),
    (np.full((2, 2), np.nan, np.float32), None),
    (GREY.astype(np.float32) * 100, None),
  ],
)
def test_images_of_32_bits_are_scaled_or_refused(stored, expected):
  file = io.BytesIO()
  Image.fromarray(stored).save(file, "TIFF")
  if expected is None:
    with pytest.raises(pictures.UnusableImage, match="32-bit pixels beyond 0 to"):
      pictures.read_pixels(file.getvalue(), 1)
  else:
    np.testing.assert_allclose(pictures.read_pixels(file.getvalue(), 1)[..., 0], expected, atol=3)


@pytest.mark.parametrize(
  ("mode", "form"), [("CMYK", "TIFF"), ("LA", "PNG"), ("P", "PNG"), ("RGBA", "PNG"), ("1", "PNG")]
)
def test_other_modes_keep_their_brightness(mode, form):
  grey = Image.fromarray(np.where(GREY > 100, 255, 0).astype(np.uint8))
  file = io.BytesIO()
  extra = {"transparency": 0} if mode == "P" else {}
  grey.convert("RGB").convert(mode).save(file, "TIFF" if mode == "CMYK" else "PNG", **extra)
  np.testing.assert_allclose(
    pictures.read_pixels(file.getvalue(), 1)[..., 0], np.asarray(grey), atol=3
  )
