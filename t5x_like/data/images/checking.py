"""Checks each image once, when a store is made, and converts it if necessary."""

import io

from t5x_like.corpora.sources import Skip
from t5x_like.data.images.pictures import Unusable, plain, readable
from t5x_like.data.quiet_tensorflow import tf

_KEPT = {"JPEG": ("L", "RGB"), "PNG": ("L", "RGB")}


def checked(data: bytes) -> tuple[bytes, bool] | Skip:
  """Return the bytes that the store keeps of an image file.

  Returns:
    (bytes, whether they were converted), or why the image cannot be used. Grey and RGB images in JPEG or PNG stay as
    they are; others that Pillow reads (CMYK, palettes, transparency, 16 bits, WebP, TIFF, …) become an 8-bit grey or
    RGB PNG.
  """

  def kept(image) -> tuple[bytes, bool]:
    if image.mode in _KEPT.get(image.format, ()):
      tf.io.decode_image(data, expand_animations=False)  # batches decode with it later
      return data, False
    file = io.BytesIO()
    plain(image).save(file, "PNG")
    return file.getvalue(), True

  try:
    return readable(data, kept)
  except Unusable as error:
    return Skip(str(error))
