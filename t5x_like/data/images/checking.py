"""Which images a store takes, and in which form: each is looked at once, when the store is made."""

import io

from t5x_like.data.images.pictures import plain, readable
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.sources import Skip

_KEPT = {"JPEG": ("L", "RGB"), "PNG": ("L", "RGB")}


def checked(data: bytes) -> tuple[bytes, bool] | Skip:
  """What the store keeps of a file's bytes.

  Returns:
    (bytes, whether they are others): grey and RGB images in JPEG or PNG as they are; others that Pillow reads (CMYK,
    palettes, transparency, 16 bits, WebP, TIFF, …) as an 8-bit grey or RGB PNG. Or why the image cannot be used.
  """

  def kept(image) -> tuple[bytes, bool]:
    if image.mode in _KEPT.get(image.format, ()):
      tf.io.decode_image(data, expand_animations=False)  # it is what reads them later
      return data, False
    file = io.BytesIO()
    plain(image).save(file, "PNG")
    return file.getvalue(), True

  return readable(data, kept)
