"""`idx:train=train-images-idx3-ubyte.gz,…`: MNIST's files; `image` and `label`.

The labels are in the neighbouring file whose name has `labels` for `images` and `idx1` for `idx3`.
A label is its number, as text; an image becomes a PNG. Files may be compressed.
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

# bytes of values allowed in any file, and further bytes per byte of its stored size
_SMALL = 2**26
_PACKED = 200


class Source(FileSource):
  """Images [N, Y, X] or [N, Y, X, C] and labels [N], both uint8."""

  def classes(self, field: str) -> tuple[str, ...]:
    max_label = max(
      int(_labels(path).max(initial=0)) for files in self._files.values() for path in files
    )
    return tuple(str(number) for number in range(max_label + 1))

  def read(self, path: str) -> Iterator[tuple[str, Record]]:
    images = _array(path, (3, 4))
    labels = _labels(path)
    if len(images) != len(labels):
      raise UserError(
        f"{path}: found {len(images)} images but {len(labels)} labels in {_beside(path)}"
      )
    for number, (image, label) in enumerate(zip(images, labels)):
      yield f"{path}, image {number}", {"image": encode_png(image), "label": str(label)}

  def split_facts(self, split: str) -> dict[str, Any]:
    label_paths = [_beside(path) for path in self._files[split]]
    return super().split_facts(split) | {
      "labels": [[as_path(p).size(), as_path(p).modified_time()] for p in label_paths]
    }


def encode_png(image: np.ndarray) -> bytes:
  """Encode uint8 [Y, X], [Y, X, 1] or [Y, X, 3] as a PNG."""
  from PIL import Image

  file = io.BytesIO()
  Image.fromarray(image.squeeze(-1) if image.shape[2:] == (1,) else image).save(file, "PNG")
  return file.getvalue()


def _beside(path: str) -> str:
  folder, name = os.path.split(path)
  labels = name.replace("images", "labels").replace("idx3", "idx1").replace("idx4", "idx1")
  if labels == name or not as_path(os.path.join(folder, labels)).exists():
    raise UserError(
      f"source idx:{path}: found no file of labels beside it, expected a file of images such as "
      "train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz beside it"
    )
  return os.path.join(folder, labels)


def _labels(path: str) -> np.ndarray:
  return _array(_beside(path), (1,))


def _array(path: str, axes: tuple[int, ...]) -> np.ndarray:
  """Read the array of a file.

  Raises UserError unless it is whole, uint8, and has one of these numbers of axes.
  """
  try:
    with _compression.open_plain(path) as file:
      magic = file.read(4)
      lengths = file.read(4 * magic[3]) if len(magic) == 4 else b""
      shape = tuple(int(n) for n in np.frombuffer(lengths[: len(lengths) // 4 * 4], ">u4"))
      expectation = f"expected an IDX file of uint8 with {' or '.join(map(str, axes))} axes"
      if (
        magic[:3] != b"\0\0\x08"
        or len(magic) < 4
        or magic[3] not in axes
        or len(lengths) < 4 * magic[3]
      ):
        raise UserError(
          f"{path}: found a file that begins with {magic.hex() or 'nothing'}, {expectation}"
        )
      max_values = _SMALL + _PACKED * as_path(path).size()
      if math.prod(shape) > max_values:
        raise UserError(
          f"{path}: found the shape {list(shape)}, expected at most {max_values:,} values of a "
          "file of its size"
        )
      # Packed zeros may be endless: unpack no more than the shape's bytes and one more, which
      # reveals any excess.
      data = b"".join(_pieces(file, math.prod(shape) + 1))
  except _compression.DAMAGED as error:
    raise _unreadable(path, path, error) from error
  if len(data) != math.prod(shape):
    count = f"more than {math.prod(shape)}" if len(data) > math.prod(shape) else len(data)
    raise UserError(
      f"{path}: found {count} values, expected {math.prod(shape)} for shape {list(shape)}"
    )
  return np.frombuffer(data, np.uint8).reshape(shape)


def _pieces(file: BinaryIO, num_bytes: int) -> Iterator[bytes]:
  while num_bytes > 0 and (piece := file.read(min(num_bytes, 2**20))):
    num_bytes -= len(piece)
    yield piece
