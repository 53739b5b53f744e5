"""`idx:train=train-images-idx3-ubyte.gz,…`: read files in MNIST's format, IDX.

Records have the fields `image`, a PNG, and `label`, the label's number as text. Labels are read
from the file in the images' folder whose name has `labels` instead of `images` and `idx1` instead
of `idx3`. Files may be compressed.
"""

import io
import math
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from t5x_like.corpora.sources import Record, _compression
from t5x_like.corpora.sources._files import FileSource, _unreadable
from t5x_like.errors import UserError
from t5x_like.files.paths import as_path

# A file may claim this many values, and further ones for each byte that it takes on disk: a small
# compressed file must not fill the memory.
_ALWAYS_ALLOWED_VALUES = 2**26
_ALLOWED_VALUES_PER_BYTE = 200


class Source(FileSource):
  """Images [N, Y, X] or [N, Y, X, C] and labels [N], both uint8."""

  def classes(self, field: str) -> tuple[str, ...]:
    max_label = 0
    for image_paths in self._files.values():
      for image_path in image_paths:
        max_label = max(max_label, int(_read_labels(image_path).max(initial=0)))
    return tuple(str(number) for number in range(max_label + 1))

  def read(self, path: str) -> Iterator[tuple[str, Record]]:
    images = _read_array(path, (3, 4))
    labels = _read_labels(path)
    if len(images) != len(labels):
      raise UserError(
        f"{path}: found {len(images)} images but {len(labels)} labels in {_find_labels(path)}"
      )
    for number, (image, label) in enumerate(zip(images, labels)):
      yield f"{path}, image {number}", {"image": encode_png(image), "label": str(label)}

  def split_facts(self, split: str) -> dict[str, Any]:
    label_files = [as_path(_find_labels(path)) for path in self._files[split]]
    versions = [[file.size(), file.modified_time()] for file in label_files]
    return super().split_facts(split) | {"labels": versions}


def encode_png(image: np.ndarray) -> bytes:
  """Encode uint8 [Y, X], [Y, X, 1] or [Y, X, 3] as a PNG."""
  from PIL import Image

  if image.shape[2:] == (1,):
    image = image.squeeze(-1)
  file = io.BytesIO()
  Image.fromarray(image).save(file, "PNG")
  return file.getvalue()


def _find_labels(path: str) -> str:
  """Return the path of the labels of a file of images; raise UserError if there is none."""
  folder, name = os.path.split(path)
  labels = name.replace("images", "labels").replace("idx3", "idx1").replace("idx4", "idx1")
  if labels == name or not as_path(os.path.join(folder, labels)).exists():
    raise UserError(
      f"source idx:{path}: found no file of labels next to it, expected a file of images such as "
      "train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz next to it"
    )
  return os.path.join(folder, labels)


def _read_labels(path: str) -> np.ndarray:
  """Read the labels of a file of images."""
  return _read_array(_find_labels(path), (1,))


def _read_array(path: str, allowed_ndims: tuple[int, ...]) -> np.ndarray:
  """Read the array of an IDX file.

  Raises:
    UserError: the file is damaged or truncated, or its array is not uint8 or has another number of
      axes than the allowed ones.
  """
  try:
    with _compression.open_plain(path) as file:
      shape = _read_shape(path, file, allowed_ndims)
      num_values = math.prod(shape)
      max_values = _ALWAYS_ALLOWED_VALUES + _ALLOWED_VALUES_PER_BYTE * as_path(path).size()
      if num_values > max_values:
        raise UserError(
          f"{path}: found the shape {list(shape)}, expected at most {max_values:,} values of a "
          "file of its size"
        )
      # A few compressed bytes can unpack to any number of zeros. Read one byte more than the shape
      # needs, which shows whether there are more.
      content = b"".join(_read_chunks(file, num_values + 1))
  except _compression.DAMAGED as error:
    raise _unreadable(path, path, error) from error
  if len(content) != num_values:
    count = f"more than {num_values}" if len(content) > num_values else len(content)
    raise UserError(f"{path}: found {count} values, expected {num_values} for shape {list(shape)}")
  return np.frombuffer(content, np.uint8).reshape(shape)


def _read_shape(path: str, file: BinaryIO, allowed_ndims: tuple[int, ...]) -> tuple[int, ...]:
  """Read the shape from the header of an IDX file.

  The header has two zeros, the type (8 is uint8), the number of axes and the length of each.
  """
  magic = file.read(4)
  if len(magic) == 4 and magic[:3] == b"\0\0\x08" and magic[3] in allowed_ndims:
    lengths = file.read(4 * magic[3])
    if len(lengths) == 4 * magic[3]:
      return tuple(int(length) for length in np.frombuffer(lengths, ">u4"))
  raise UserError(
    f"{path}: found a file that begins with {magic.hex() or 'nothing'}, expected an IDX file of "
    f"uint8 with {' or '.join(map(str, allowed_ndims))} axes"
  )


def _read_chunks(file: BinaryIO, num_bytes: int) -> Iterator[bytes]:
  """Yield at most a number of bytes of a file, a MiB at a time."""
  while num_bytes > 0:
    chunk = file.read(min(num_bytes, 2**20))
    if not chunk:
      return
    num_bytes -= len(chunk)
    yield chunk
