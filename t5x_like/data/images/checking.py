"""Check each image once, when a store is made, and convert it if necessary."""

import io

from t5x_like.corpora.image_files import UnusableImage, read_image, to_8_bits, turn_upright
from t5x_like.corpora.sources import Skip
from t5x_like.quiet_tensorflow import tf

# The modes in which files of a format are kept. MPO is a JPEG followed by further pictures.
_KEPT_MODES = {"JPEG": ("L", "RGB"), "MPO": ("L", "RGB"), "PNG": ("L", "RGB")}
_JPEG_QUALITY = 95


def check_image(data: bytes, size_2: tuple[int, int] | None = None) -> tuple[bytes, str] | Skip:
  """Check an image file and return the bytes that a store keeps of it.

  Grey and RGB images in JPEG or PNG stay as they are; others that Pillow reads (CMYK, palettes,
  transparency, 16 bits, WebP, TIFF, …) become an 8-bit grey or RGB PNG. Images with an EXIF
  orientation are turned upright; a JPEG remains a JPEG.

  Args:
    data: the bytes of the file.
    size_2: the image's height and width as annotations name them, see `image_files.turn_upright`.

  Returns:
    (bytes, a description of their change or ""), or a `Skip` if the image cannot be used.
  """

  def convert(image) -> tuple[bytes, str]:
    upright = turn_upright(image, size_2)
    if upright is image and image.mode in _KEPT_MODES.get(image.format, ()):
      tf.io.decode_image(data, expand_animations=False)  # batches decode with it later
      return data, ""
    file = io.BytesIO()
    if upright is not image and image.format in ("JPEG", "MPO"):
      to_8_bits(upright).save(file, "JPEG", quality=_JPEG_QUALITY)
      return file.getvalue(), "turned upright"
    to_8_bits(upright).save(file, "PNG")
    return file.getvalue(), "converted to PNG"

  try:
    return read_image(data, convert)
  except UnusableImage as error:
    return Skip(str(error))
