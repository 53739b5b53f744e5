"""Which images a store takes, and in which form: each is looked at once, when the store is made."""

import io
import warnings

import numpy as np

from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.sources import Skip

MOST_PIXELS = 2**26  # 67 million; one image of more would hold up a batch, and take gigabytes as float32
_KEPT = {"JPEG": ("L", "RGB"), "PNG": ("L", "RGB")}
_GREY = ("1", "L", "LA", "La", "F")


def checked(data: bytes) -> tuple[bytes, bool] | Skip:
  """What the store keeps of a file's bytes.

  Returns:
    (bytes, whether they are others): grey and RGB images in JPEG or PNG as they are; others that Pillow reads (CMYK,
    palettes, transparency, 16 bits, WebP, TIFF, …) as an 8-bit grey or RGB PNG. Or why the image cannot be used.
  """
  from PIL import Image

  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of large images, which are refused below
    try:
      with Image.open(io.BytesIO(data)) as image:
        if image.width * image.height > MOST_PIXELS:
          return Skip(f"more than {MOST_PIXELS:,} pixels")
        if image.mode in _KEPT.get(image.format, ()):
          tf.io.decode_image(data, expand_animations=False)  # it is what reads them later
          return data, False
        file = io.BytesIO()
        _plain(image).save(file, "PNG")
        return file.getvalue(), True
    except Image.DecompressionBombError:
      return Skip(f"more than {MOST_PIXELS:,} pixels")
    except (
      Exception
    ):  # whatever the decoders raise for damaged files: OSError, SyntaxError, ValueError, struct.error, …
      return Skip("not a readable image")


def _plain(image):
  """A Pillow image as 8-bit grey or RGB."""
  from PIL import Image

  if image.mode.startswith("I"):  # 16 bits, which Pillow would clip
    return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
  return image.convert("L" if image.mode in _GREY else "RGB")
