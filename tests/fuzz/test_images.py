"""Preparing damaged images ends in a one-line error or in a store that can be read."""

import gzip
import io
import random
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from t5x_like.data.images import store
from tests.fuzz import harness, mutations

pytestmark = pytest.mark.runs

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 10, 4), np.uint8)


def encode(kind: str, mode: str = "RGB", **options) -> bytes:
  """Return the test picture in a file format, with one of Pillow's modes."""
  file = io.BytesIO()
  Image.fromarray(PIXELS, "RGBA").convert(mode).save(file, kind, **options)
  return file.getvalue()


def encode_16_bits() -> bytes:
  file = io.BytesIO()
  Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 256).save(file, "PNG")
  return file.getvalue()


def encode_animation(kind: str) -> bytes:
  file = io.BytesIO()
  frames = [Image.fromarray(np.roll(PIXELS[..., :3], n, 0)) for n in range(4)]
  frames[0].save(file, kind, save_all=True, append_images=frames[1:])
  return file.getvalue()


def make_png(width: int, height: int, data: bytes, colour: int = 2, depth: int = 8) -> bytes:
  """Return a PNG with any sizes in its header, whatever its compressed data contain."""

  def chunk(name: bytes, content: bytes) -> bytes:
    return (
      struct.pack(">I", len(content))
      + name
      + content
      + struct.pack(">I", zlib.crc32(name + content))
    )

  header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
  return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


PICTURES = {
  "PNG": lambda: encode("PNG"),
  "JPEG": lambda: encode("JPEG"),
  "GIF": lambda: encode("GIF", "P"),
  "WebP": lambda: encode("WebP"),
  "BMP": lambda: encode("BMP"),
  "TIFF": lambda: encode("TIFF"),
  "a CMYK JPEG": lambda: encode("JPEG", "CMYK"),
  "a palette": lambda: encode("PNG", "P"),
  "transparency": lambda: encode("PNG", "RGBA"),
  "16 bits": encode_16_bits,
  "an animated GIF": lambda: encode_animation("GIF"),
  "an animated PNG": lambda: encode_animation("PNG"),
  "an animated WebP": lambda: encode_animation("WebP"),
  "a PNG of 100 megapixels": lambda: make_png(
    10_000, 10_000, zlib.compress(b"\0" * (30_001 * 10_000))
  ),
  "a PNG whose header states 60,000 x 60,000": lambda: make_png(
    60_000, 60_000, zlib.compress(b"\0" * 100)
  ),
  "a PNG whose header states 8000 x 8000": lambda: make_png(8000, 8000, zlib.compress(b"\0" * 100)),
  "a PNG of no pixels": lambda: make_png(0, 0, b""),
  "a PNG of 2**31 columns": lambda: make_png(2**31 - 1, 1, b""),
  "a PNG bomb": lambda: make_png(10, 12, zlib.compress(b"\0" * (200 << 20))),
  "text bomb in a PNG": lambda: make_png(10, 12, zlib.compress(b"\0" * 372)).replace(
    b"IEND", b"zTXt" + b"a\0\0" + zlib.compress(b"a" * (100 << 20))
  ),
  "SVG": lambda: b'<svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>',
  "nothing": lambda: b"",
}


def picture(rng: random.Random) -> tuple[bytes, str]:
  kind = rng.choice(sorted(PICTURES))
  data = PICTURES[kind]()
  if rng.random() < 0.5:
    data, change = mutations.mutate_bytes(data, rng)
    kind += f", {change}"
  if data.startswith(b"BM") and rng.random() < 0.5:
    data = data[:18] + struct.pack("<ii", 60_000, rng.choice((1000, 60_000, -1))) + data[26:]
    kind = "a BMP with wrong sizes in its header"
  return data, kind


def encode_idx(array: np.ndarray, shape: tuple | None = None, kind: int = 8) -> bytes:
  """Return an IDX file; `shape` and `kind`, the code of the dtype, may contradict the array."""
  shape = array.shape if shape is None else shape
  return (
    bytes([0, 0, kind, len(shape)])
    + b"".join(struct.pack(">I", n) for n in shape)
    + array.tobytes()
  )


IDX_SHAPES = [
  (2**32 - 1,) * 3,
  (0, 8, 8),
  (3, 0, 64),
  (2**31, 2**31, 2**31),
  (65_536,) * 4,
  (3, 2**30, 2**30),
  (192,),
]


def write_idx(rng: random.Random, folder) -> str:
  """Write three images and their labels, one of the files damaged; return a description."""
  arrays = {
    "a-images-idx3-ubyte": np.arange(3 * 8 * 8, dtype=np.uint8).reshape(3, 8, 8),
    "a-labels-idx1-ubyte": np.arange(3, dtype=np.uint8),
  }
  for name, array in arrays.items():
    (folder / name).write_bytes(encode_idx(array))
  name = rng.choice(list(arrays))
  content = encode_idx(arrays[name])
  change = "as it is"
  if rng.random() < 0.5:
    shape = rng.choice(IDX_SHAPES)
    content = encode_idx(arrays[name], shape, rng.choice((8, 8, 9, 13)))
    change = f"shape {shape}"
  elif rng.random() < 0.8:
    content, change = mutations.mutate_bytes(content, rng)
  if rng.random() < 0.2:
    content, second_change = mutations.mutate_bytes(gzip.compress(content), rng)
    change += f", compressed, {second_change}"
  elif rng.random() < 0.1:
    content = gzip.compress(content) + gzip.compress(b"\0" * 2**26) * 32
    change = "2 GiB of zeros, compressed"
  (folder / name).write_bytes(content)
  return f"{name} {change}"


def write_folders(rng: random.Random, folder) -> str:
  for name in ("cat", "dog"):
    (folder / name).mkdir()
    (folder / name / "1.png").write_bytes(encode("PNG"))
  data, change = picture(rng)
  name = rng.choice(("x.png", "x", "$(id).png", "a\nb.png", "🦊.jpg", "x.svg"))
  (folder / "cat" / name).write_bytes(data)
  return f"{name!r}: {change}"


WRITERS = {"idx": write_idx, "folders": write_folders}
SOURCES = {"idx": "idx:{0}/a-images-idx3-ubyte", "folders": "folders:{0}"}


def prepare(source: str, out) -> None:
  """Prepare the images of a source, and read the first one."""
  store.open_store(source, "train", cache=str(out)).read(np.arange(1))


def draw_case(rng: random.Random, root, writers: dict, sources: dict, prepare):
  """Write damaged images; return a description and the function that prepares them.

  Args:
    writers: layout -> the function that writes the images and returns a description of the damage.
    sources: layout -> its source, a format string with the folder as its argument.
    prepare: prepares the images of (a source, a folder for the store).
  """
  layout = rng.choice(list(writers))
  (root / "in").mkdir()
  change = writers[layout](rng, root / "in")
  source = sources[layout].format(root / "in")
  return f"{layout}: {change}", lambda out: prepare(source, out)


def case(rng: random.Random, root):
  return draw_case(rng, root, WRITERS, SOURCES, prepare)


class Never(random.Random):
  """A generator whose draws choose no mutation, and an intact picture."""

  def random(self):
    return 0.99

  def choice(self, options):
    whole = ("picture", "PNG", "x.png")
    return next((option for option in whole if option in options), options[0])


@pytest.mark.parametrize("layout", WRITERS)
def test_undamaged_layouts_are_read(layout, tmp_path):
  """Show that refusals of mutated files are not due to wrong calls."""
  _, call = draw_case(Never(0), tmp_path, {layout: WRITERS[layout]}, SOURCES, prepare)
  call(tmp_path / "out")


def test_a_few_mutated_images_are_read_or_refused(tmp_path):
  harness.run_cases(case, tmp_path, range(15))


@pytest.mark.fuzz
@pytest.mark.parametrize("first", range(1000, 1300, 60))
def test_many_mutated_images_are_read_or_refused(first, tmp_path):
  harness.run_cases(case, tmp_path, range(first, first + 60))
