"""Image files: their formats, orientation and 8-bit pixels, read by Pillow."""

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

# 67 million; a larger image would delay a batch and take gigabytes as float32
MAX_PIXELS = 2**26
# The key under which a source gives the height and width of an image by its annotations.
ANNOTATED_SIZE = "annotated_size"
# The formats that are decoded, by Pillow's names. Others would add decoders that few have tested;
# EPS would run a program.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
_ORIENTATION = 0x112  # EXIF's tag; 1 is upright, 2 to 8 are turned or mirrored
_GREY = ("1", "L", "LA", "La")
_MAX_OF_16_BITS = 2**16 - 1
_OVERSHOOT = 0.5  # how far fractions may be outside their range; they are then cut off


class UnusableImage(Exception):
  """Reports that the bytes of a file are no usable image; the message has the reason."""


def read_image(data: bytes, function: Callable) -> Any:
  """Open an image and return the result of a function of the Pillow image.

  Raises:
    UnusableImage: the image is damaged or too large.
  """
  from PIL import Image

  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of large images, which are refused below
    try:
      with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        if image.width * image.height <= MAX_PIXELS:
          return function(image)
    except Image.DecompressionBombError:
      pass
    except UnusableImage:
      raise
    # Each decoder raises its own errors: OSError, SyntaxError, ValueError, struct.error, …
    except Exception as error:
      raise UnusableImage("not a readable image") from error
  raise UnusableImage(f"more than {MAX_PIXELS:,} pixels")


def turn_upright(image, size_2: tuple[int, int] | None = None):
  """Turn a Pillow image as its EXIF tag says, which cameras write instead of turning the pixels.

  Args:
    image: the image.
    size_2: the height and width that annotations name. An image that has them only before it is
      turned is returned unchanged.
  """
  from PIL import ImageOps

  if "exif" not in image.info:
    return image
  try:
    if image.getexif().get(_ORIENTATION) not in range(2, 9):
      return image
    turned = ImageOps.exif_transpose(image)
  # A damaged tag, or pixels that cannot be decoded; reading the pixels reports the latter.
  except Exception:
    return image
  stored_2 = (image.height, image.width)
  turned_2 = (turned.height, turned.width)
  if size_2 == stored_2 and size_2 != turned_2:
    return image
  return turned


def to_8_bits(image):
  """Convert a Pillow image to 8-bit grey or RGB.

  Images of 16 bits lose the lower eight. In images of 32 bits, the largest value decides: whole
  numbers up to 255 are taken as 8 bits and up to 65,535 as 16 bits, fractions up to 1 as shares of
  white and up to 255 as 8 bits.

  Raises:
    UnusableImage: the pixels of 32 bits have other values.
  """
  from PIL import Image

  if image.mode == "F":
    return Image.fromarray(_fractions_to_bytes(np.asarray(image)))
  if image.mode == "I":
    return Image.fromarray(_whole_numbers_to_bytes(np.asarray(image)))
  if image.mode.startswith("I"):  # 16 bits, which Pillow would clip
    high_bits = np.asarray(image).astype(np.int64) >> 8
    return Image.fromarray(high_bits.clip(0, 255).astype(np.uint8))
  return image.convert("L" if image.mode in _GREY else "RGB")


def _whole_numbers_to_bytes(pixels_YX: np.ndarray) -> np.ndarray:
  """Convert 32-bit whole numbers to 8 bits."""
  low = int(pixels_YX.min())
  high = int(pixels_YX.max())
  if low < 0 or high > _MAX_OF_16_BITS:
    raise UnusableImage(f"32-bit pixels beyond 0 to {_MAX_OF_16_BITS:,}")
  if high > 255:
    pixels_YX = pixels_YX >> 8
  return pixels_YX.astype(np.uint8)


def _fractions_to_bytes(pixels_YX: np.ndarray) -> np.ndarray:
  """Convert 32-bit fractions to 8 bits.

  Fractions that overshoot a little, as after resizing, are cut off.
  """
  low = float(pixels_YX.min())
  high = float(pixels_YX.max())
  if not (low >= -_OVERSHOOT and high <= 255 + _OVERSHOOT):  # also if any is not a number
    raise UnusableImage("32-bit pixels beyond 0 to 255")
  if high <= 1 + _OVERSHOOT:
    pixels_YX = 255 * pixels_YX
  return pixels_YX.round().clip(0, 255).astype(np.uint8)


def read_pixels(data: bytes, channels: int) -> np.ndarray:
  """Return a file's pixels, upright, grey or RGB: float32 [Y, X, C] in 0 to 255.

  Raises:
    UnusableImage: the image is damaged or too large.
  """

  def to_array(image) -> np.ndarray:
    mode = "L" if channels == 1 else "RGB"
    return np.asarray(to_8_bits(turn_upright(image)).convert(mode), np.float32)

  image = read_image(data, to_array)
  return image.reshape(*image.shape[:2], channels)
