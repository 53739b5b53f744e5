"""Plain bytes out of plain or compressed files; the kind is told by the first bytes, else by the name's end."""

import bz2
import gzip
import io
import lzma
import zlib
from typing import BinaryIO

from t5x_like.data.sources import _places

_MAGIC = {"gzip": b"\x1f\x8b", "bzip2": b"BZh", "xz": b"\xfd7zXZ\0", "zstd": b"\x28\xb5\x2f\xfd"}
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")  # text may well begin with "BZh"
_ENDS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError)


def kind(path: str) -> str | None:
  """gzip, bzip2, xz, zstd, or None for a plain file."""
  with _places.open_file(path) as file:
    head = file.read(10)
  for name, magic in _MAGIC.items():
    if head.startswith(magic) and (name != "bzip2" or head[4:10] in _BZIP2_BLOCKS):
      return name
  return next((name for end, name in _ENDS.items() if path.endswith(end)), None)


def opened(path: str) -> BinaryIO:
  """The file's plain bytes; reading raises one of `DAMAGED` for damaged or truncated data."""
  found = kind(path)
  file = _places.open_file(path)
  if found is None:
    return file
  if found == "zstd":
    import pyarrow

    return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd"))
  return {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}[found](file, "rb")
