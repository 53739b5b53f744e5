"""Image files of many kinds, readable and not, and folders of them."""

import io

import numpy as np
from PIL import Image

NOISE = np.random.default_rng(0).integers(0, 256, (9, 7, 3)).astype(np.uint8)


def encode(image, form="PNG", **options) -> bytes:
  """Return the file of an array or an image of Pillow."""
  if isinstance(image, np.ndarray):
    image = Image.fromarray(image)
  file = io.BytesIO()
  image.save(file, form, **options)
  return file.getvalue()


def write_folders(root, images: dict[str, bytes]) -> str:
  """Write files to their paths below a folder; return the source of images."""
  for name, data in images.items():
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(data)
  return f"folders:{root}"


# Images of unusual modes in class a and b, and four files that are skipped.
VARIED_FILES = {
  "a/kept.jpg": encode(NOISE, "JPEG"),
  "a/grey.png": encode(NOISE[..., 0]),
  "a/cmyk.jpg": encode(Image.fromarray(NOISE).convert("CMYK"), "JPEG"),
  "a/clear.png": encode(np.concatenate([NOISE, NOISE[..., :1]], -1)),
  "b/palette.png": encode(Image.fromarray(NOISE).convert("P")),
  "b/deep.png": encode(NOISE[..., 0].astype(np.uint16) << 8),
  "b/pixel.png": encode(NOISE[:1, :1]),
  "b/photo.webp": encode(NOISE, "WEBP", lossless=True),
  "b/broken.jpg": encode(np.tile(NOISE, (9, 9, 1)), "JPEG")[:-200],
  "b/notes.txt": b"no image",
  "b/empty.png": b"",
  "b/huge.png": encode(Image.new("1", (8200, 8200))),
}
