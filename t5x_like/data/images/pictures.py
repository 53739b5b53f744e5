"""Pictures without TensorFlow: reading files, 8-bit pixels, and the resized middle for
evaluations."""

import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

# 67 million; a larger image would hold up a batch and take gigabytes as float32
MOST_PIXELS = 2**26
# Defaults of tasks on images.
CROP = 0.875
MEAN = (0.5,)
STD = (0.5,)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# See `fit` and `method` of `data/images/examples.py`.
Fit = Literal["cut", "padded", "squeezed", "squeezed_cut"]
Method = Literal["bicubic", "bilinear", "lanczos", "nearest"]
# a source's key of the height and width of an image by its annotations
ANNOTATED = "annotated_size"
# Formats that are decoded, by Pillow's names. Others would add decoders that few have tested, and
# EPS a program.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
_ORIENTATION = 0x112  # EXIF's tag; 1 is upright, 2 to 8 are turned or mirrored
_GREY = ("1", "L", "LA", "La")
_MOST_OF_16_BITS = 2**16 - 1
_OVERSHOOT = 0.5  # beyond the range of fractions


class Unusable(Exception):
  """The bytes of a file are no image that can be used; the message says why."""


def readable(data: bytes, use: Callable) -> Any:
  """Return `use` of the Pillow image; raise `Unusable` for a damaged or too large image."""
  from PIL import Image

  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of large images, which are refused below
    try:
      with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        if image.width * image.height <= MOST_PIXELS:
          return use(image)
    except Image.DecompressionBombError:
      pass
    except Unusable:
      raise
    # each decoder raises its own: OSError, SyntaxError, ValueError, struct.error, …
    except Exception as error:
      raise Unusable("not a readable image") from error
  raise Unusable(f"more than {MOST_PIXELS:,} pixels")


def upright(image, size_2: tuple[int, int] | None = None):
  """Turn a Pillow image as its EXIF tag says, which cameras write instead of turning the pixels.

  Args:
    size_2: height and width that annotations name; an image that has them only as it is stored is
      returned as it is.
  """
  from PIL import ImageOps

  if "exif" not in image.info:
    return image
  try:
    turned = (
      ImageOps.exif_transpose(image) if image.getexif().get(_ORIENTATION) in range(2, 9) else image
    )
  # a damaged tag, or pixels that cannot be decoded, which is told when they are read
  except Exception:
    return image
  stored_2 = (image.height, image.width)
  turned_2 = (turned.height, turned.width)
  return image if stored_2 == size_2 != turned_2 else turned


def plain(image):
  """Convert a Pillow image to 8-bit grey or RGB.

  Images of 16 bits lose the lower eight. Of 32 bits, whole numbers up to 255 and up to 65,535 are
  taken for 8 and 16 bits, and fractions up to 1 and up to 255 for shares of white and 8 bits;
  `Unusable` is raised for other values.
  """
  from PIL import Image

  if image.mode == "F":
    return Image.fromarray(_of_fractions(np.asarray(image)))
  if image.mode == "I":
    return Image.fromarray(_of_whole_numbers(np.asarray(image)))
  if image.mode.startswith("I"):  # 16 bits, which Pillow would clip
    return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
  return image.convert("L" if image.mode in _GREY else "RGB")


def _of_whole_numbers(pixels_YX: np.ndarray) -> np.ndarray:
  """Convert 32-bit whole numbers to 8 bits."""
  low = int(pixels_YX.min())
  high = int(pixels_YX.max())
  if low < 0 or high > _MOST_OF_16_BITS:
    raise Unusable(f"32-bit pixels beyond 0 to {_MOST_OF_16_BITS:,}")
  return (pixels_YX >> 8 if high > 255 else pixels_YX).astype(np.uint8)


def _of_fractions(pixels_YX: np.ndarray) -> np.ndarray:
  """Convert 32-bit fractions to 8 bits; those that overshoot a little, as after resizing, are cut
  off."""
  low = float(pixels_YX.min())
  high = float(pixels_YX.max())
  if not (low >= -_OVERSHOOT and high <= 255 + _OVERSHOOT):  # also if any is not a number
    raise Unusable("32-bit pixels beyond 0 to 255")
  if high <= 1 + _OVERSHOOT:
    pixels_YX = 255 * pixels_YX
  return pixels_YX.round().clip(0, 255).astype(np.uint8)


def pixels(data: bytes, channels: int) -> np.ndarray:
  """Return a file's pixels, upright, float32 [Y, X, C] in 0 to 255, grey or RGB; raise `Unusable`
  as `readable`."""

  def array(image) -> np.ndarray:
    return np.asarray(plain(upright(image)).convert("L" if channels == 1 else "RGB"), np.float32)

  found = readable(data, array)
  return found.reshape(*found.shape[:2], channels)


def covered(side: int, crop: float) -> int:
  """Return `side / crop` pixels, to which evaluations resize a side, rounded down as in timm and
  the authors' code."""
  return int(side / crop + 1e-6)  # 224 / (224 / 248) is 248


def at_resolution(
  image_YXC: np.ndarray,
  sides_2: tuple[int, int],
  crop: float,
  fit: Fit = "cut",
  mean: Sequence[float] = MEAN,
  method: Method = "bicubic",
) -> np.ndarray:
  """Bring an image to a height and width, as `Seen.fit` says: float32 [*sides_2, C]; `mean` fills
  what it leaves.

  Equal to `at_resolution` of `data/images/examples.py`, which uses TensorFlow.
  """
  shape = np.array(image_YXC.shape[:2])
  cuts = fit.endswith("cut")
  whole_2 = size = np.array([covered(side, crop) for side in sides_2] if cuts else sides_2)
  if not fit.startswith("squeezed"):  # the other side is rounded down, as in torchvision
    axis = (whole_2 / shape).argmax() if cuts else (whole_2 / shape).argmin()
    size = np.maximum(shape * whole_2[axis] // shape[axis], whole_2 if cuts else 1)
  start = (size - sides_2) // 2
  seen_2 = np.minimum(size, sides_2)
  # of the middle alone: a side may be very long
  places = [max(at, 0) + np.arange(n) for at, n in zip(start, seen_2)]
  if (size == shape).all():
    made = image_YXC[places[0]][:, places[1]]
  else:
    made = _interpolated(image_YXC, *(_weights(*each, method) for each in zip(shape, size, places)))
  filled = np.empty((*sides_2, image_YXC.shape[-1]), np.float32)
  filled[:] = 255.0 * np.asarray(mean, np.float32)
  (y, x), (h, w) = np.maximum(-start, 0), seen_2
  filled[y : y + h, x : x + w] = made
  return filled


def within(image_YXC: np.ndarray, shortest: int, longest: int) -> np.ndarray:
  """Resize the shorter side to `shortest` pixels, or less so that the longer side is at most
  `longest`.

  Equal to `resized` of `data/box_augmentations/_sizes.py`, which uses TensorFlow.
  """
  shape = np.array(image_YXC.shape[:2])
  low = shape.min()
  high = shape.max()
  wanted = min(shortest, longest * low / high)
  # as in DETR's code
  short = round(wanted)
  long = int(wanted * high / low)
  size = np.where(shape == low, short, min(high if short == low else long, longest)).clip(1)
  if (size == shape).all():
    return image_YXC
  return _interpolated(
    image_YXC, *(_weights(*each, "bilinear") for each in zip(shape, size, map(np.arange, size)))
  )


def _interpolated(image_YXC: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
  made_YXC = np.einsum("xk,rkc->rxc", columns, image_YXC, optimize=True)
  return np.einsum("yr,rxc->yxc", rows, made_YXC, optimize=True).clip(0.0, 255.0)


def _weights(old: int, new: int, at_R: np.ndarray, method: Method) -> np.ndarray:
  """Return the weights, float32 [R, old], that interpolate places of a side of `new` pixels from
  `old` pixels.

  Downsampling widens the kernel.
  """
  if method == "nearest":
    return ((2 * at_R[:, None] + 1) * old // (2 * new) == np.arange(old)).astype(np.float32)
  wide = max(old / new, 1.0)
  centre = (at_R + 0.5) * old / new - 0.5
  weights = _KERNELS[method](np.abs(centre[:, None] - np.arange(old)) / wide)
  return (weights / weights.sum(1, keepdims=True)).astype(np.float32)


def _cubic(x: np.ndarray) -> np.ndarray:
  """Evaluate the cubic kernel of Keys (1981) with a = -0.5."""
  near = 1.5 * x**3 - 2.5 * x**2 + 1
  far = -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
  return np.where(x < 1, near, np.where(x < 2, far, 0.0))


_KERNELS = {
  "bicubic": _cubic,
  "bilinear": lambda x: np.maximum(1 - x, 0.0),
  "lanczos": lambda x: np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0.0),
}
