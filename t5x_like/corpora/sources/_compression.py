"""Open compressed files as plain bytes.

The first bytes of a file tell the compression or, if they do not, its suffix.
"""

import bz2
import functools
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from typing import BinaryIO

from t5x_like.files.paths import as_path

_MAGIC = {"gzip": b"\x1f\x8b", "bzip2": b"BZh", "xz": b"\xfd7zXZ\0", "zstd": b"\x28\xb5\x2f\xfd"}
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")  # text can also begin with "BZh"
_ENDS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
SUFFIXES = tuple(_ENDS)
_PIECE = 2**17
# The errors that reading a damaged or truncated file raises.
DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError)


def kind(path: str) -> str | None:
  """Return gzip, bzip2, xz or zstd, or None for a plain file."""
  with as_path(path).open("rb") as file:
    return _kind(path, file)


def _kind(path: str, file: BinaryIO) -> str | None:
  """Return the compression of an open file, which is left at its beginning."""
  head = file.read(10)
  file.seek(0)
  for name, magic in _MAGIC.items():
    if head.startswith(magic) and (name != "bzip2" or head[4:10] in _BZIP2_BLOCKS):
      return name
  return next((name for end, name in _ENDS.items() if path.endswith(end)), None)


def without_suffix(path: str) -> str:
  """Return a path without the suffix of its compression, if it has one."""
  for suffix in SUFFIXES:
    if path.endswith(suffix):
      return path.removesuffix(suffix)
  return path


def open_plain(path: str) -> BinaryIO:
  """Open the file's plain bytes; reading raises one of `DAMAGED` for damaged or truncated data."""
  file = as_path(path).open("rb")
  compression = _kind(path, file)
  if compression is None:
    return file
  if compression == "zstd":
    import pyarrow

    stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")
    return io.BufferedReader(stream)
  if compression == "gzip":
    return gzip.open(file, "rb")
  if compression == "bzip2":
    return io.BufferedReader(_Streams(file, bz2.BZ2Decompressor), _PIECE)
  new_decoder = functools.partial(lzma.LZMADecompressor, lzma.FORMAT_XZ)
  return io.BufferedReader(_Streams(file, new_decoder), _PIECE)


class _Streams(io.RawIOBase):
  """The plain bytes of concatenated bzip2 or xz streams.

  The standard library's readers stop silently if anything but another stream follows a stream, such
  as a stream whose first byte is damaged. Here anything but zeros, which are padding, raises one of
  `DAMAGED`.
  """

  def __init__(
    self, file: BinaryIO, new_decoder: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]
  ):
    self._file = file
    self._new_decoder = new_decoder
    self._decoder = new_decoder()

  def readable(self) -> bool:
    return True

  def close(self) -> None:
    self._file.close()
    super().close()

  def readinto(self, buffer: memoryview) -> int:
    plain = b""
    while not plain:
      packed = b""
      if self._decoder.eof:
        packed = self._read_stream_start()
        if not packed:
          return 0
        self._decoder = self._new_decoder()
      elif self._decoder.needs_input:
        packed = self._file.read(_PIECE)
        if not packed:
          raise EOFError("Compressed file ended before the end-of-stream marker was reached")
      plain = self._decoder.decompress(packed, len(buffer))
    buffer[: len(plain)] = plain
    return len(plain)

  def _read_stream_start(self) -> bytes:
    """Return the first bytes of the next stream, after padding; b"" at the end of the file."""
    packed = self._decoder.unused_data.lstrip(b"\0")
    while not packed:
      piece = self._file.read(_PIECE)
      if not piece:
        return b""
      packed = piece.lstrip(b"\0")
    return packed
