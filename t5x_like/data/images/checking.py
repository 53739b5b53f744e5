"""Checks each image once, when a store is made, and converts it if necessary."""

import io

from t5x_like.corpora.sources import Skip
from t5x_like.data.images.pictures import Unusable, plain, readable, upright
from t5x_like.data.quiet_tensorflow import tf

# MPO: a JPEG with further pictures behind
_KEPT = {"JPEG": ("L", "RGB"), "MPO": ("L", "RGB"), "PNG": ("L", "RGB")}
_QUALITY = 95


def checked(data: bytes, size_2: tuple[int, int] | None = None) -> tuple[bytes, str] | Skip:
  """Return the bytes that the store keeps of an image file.

  Args:
    size_2: the image's height and width as annotations name them, see `pictures.upright`.
  Returns:
    (bytes, their change in words or ""), or why the image cannot be used. Grey and RGB images in
    JPEG or PNG stay as they are; others that Pillow reads (CMYK, palettes, transparency, 16 bits,
    WebP, TIFF, …) become an 8-bit grey or RGB PNG. Images that EXIF calls turned are turned; of
    JPEGs, the store keeps a JPEG.
  """

  def kept(image) -> tuple[bytes, str]:
    seen = upright(image, size_2)
    lossy = image.format in ("JPEG", "MPO")
    if seen is image and image.mode in _KEPT.get(image.format, ()):
      tf.io.decode_image(data, expand_animations=False)  # batches decode with it later
      return data, ""
    file = io.BytesIO()
    if seen is not image and lossy:
      plain(seen).save(file, "JPEG", quality=_QUALITY)
      return file.getvalue(), "turned upright"
    plain(seen).save(file, "PNG")
    return file.getvalue(), "converted to PNG"

  try:
    return readable(data, kept)
  except Unusable as error:
    return Skip(str(error))
