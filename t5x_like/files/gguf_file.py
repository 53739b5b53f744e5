"""Read GGUF, the file format of llama.cpp: metadata and named tensors, many of them quantized.

The header is parsed here, because a damaged one must end in one line: every length, offset and
count is compared with the size of the file before anything is allocated. The package `gguf` knows
the types of tensors and turns their blocks into numbers. Nothing in a file is executed.

The format is documented at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import dataclasses
import functools
import math
import mmap
import os
import struct
from typing import Any

import numpy as np

from t5x_like.errors import UserError, one_line, unreadable_file_error
from t5x_like.files.file_names import quote_name
from t5x_like.files.local import check_regular
from t5x_like.files.paths import is_remote

SUFFIX = ".gguf"
# Types of tensors that are read; the package knows more, such as IQ2_XXS.
TENSOR_TYPES = tuple("F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K".split())

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_AXES = 4
_DEFAULT_ALIGNMENT = 32
_ALIGNMENT = "general.alignment"
# Types of metadata values: number in the file -> format of `struct`.
_SCALARS = {
  0: "B",
  1: "b",
  2: "H",
  3: "h",
  4: "I",
  5: "i",
  6: "f",
  7: "?",
  10: "Q",
  11: "q",
  12: "d",
}
_STRING = 8
_ARRAY = 9
_MIN_ENTRY_BYTES = 12  # the least of a key or a tensor: the length of its name, and a type


@dataclasses.dataclass(frozen=True)
class TensorInfo:
  """The position, shape and type of a tensor in a file.

  Attributes:
    shape: its shape; the values of a row are on the last axis, as in NumPy.
    type_name: the type of its blocks, such as "Q4_K".
    start: the position of its first byte in the file.
    num_bytes: its size in the file.
  """

  shape: tuple[int, ...]
  type_name: str
  start: int
  num_bytes: int


class GgufFile:
  """A GGUF file whose header has been read and checked.

  Args:
    path: the file, on a disk of this machine.

  Attributes:
    path: the file.
    metadata: values by key: numbers, Booleans, strings, and lists of these. A float32 is the
      shortest decimal number that rounds to it.
    tensors: the tensors by name.

  Raises:
    UserError: the package `gguf` is not installed, or the file is missing, truncated, damaged, of
      another version, in several parts, or has tensors of a type that is not read.
  """

  def __init__(self, path: str):
    self.path = path
    package = import_gguf(path)
    try:
      check_regular(path)
      with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < len(_MAGIC):
          raise UserError(f"{path}: found {size} bytes, expected a GGUF file; copy it again")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
          header = _Header(path, content)
          self.metadata, self.tensors = header.read(package)
    except OSError as error:
      reason = error.strerror or one_line(error)
      raise UserError(f"{path}: cannot be read ({reason}), expected a GGUF file") from error
    parts = self.metadata.get("split.count", 1)
    if parts not in (0, 1):
      raise UserError(
        f"{path}: found one of {quote_name(parts)} parts, expected a whole model; join them with "
        "llama.cpp's llama-gguf-split --merge"
      )

  def read(self, name: str) -> np.ndarray:
    """Return a tensor as float32.

    Raises:
      UserError: the file has become shorter, or cannot be read any more.
    """
    info = self.tensors[name]
    try:
      blocks = np.fromfile(self.path, np.uint8, info.num_bytes, offset=info.start)
    except OSError as error:
      raise unreadable_file_error(self.path, error) from error
    if blocks.size != info.num_bytes:
      raise UserError(
        f"{self.path}: tensor {quote_name(name)} has {blocks.size} bytes, expected "
        f"{info.num_bytes}; the file was changed, copy it again"
      )
    package = import_gguf(self.path)
    tensor_type = package.GGMLQuantizationType[info.type_name]
    rows = blocks.reshape(math.prod(info.shape[:-1]), -1)
    values = package.dequantize(rows, tensor_type)
    return np.asarray(values, np.float32).reshape(info.shape)


def is_gguf(path: Any) -> bool:
  """Return whether a path has the ending of GGUF files and is no directory."""
  return str(path).lower().endswith(SUFFIX) and not os.path.isdir(path)


def open_gguf(path: Any) -> GgufFile:
  """Open a GGUF file, or return the one that is open if the file is the same.

  Raises:
    UserError: as `GgufFile`, or the path is an address.
  """
  path = os.fspath(path)
  if is_remote(path):
    raise UserError(f"{path}: found an address, expected a GGUF file on a disk; copy it here")
  path = path.removeprefix("file://")
  try:
    status = os.stat(path)
  except OSError as error:
    raise UserError(
      f"{path}: cannot be read ({error.strerror}), expected a GGUF file; correct the path"
    ) from error
  return _open(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=2)
def _open(path: str, size: int, modified: int) -> GgufFile:
  """Open a file, or return it from the cache if its size and time are unchanged."""
  return GgufFile(path)


def import_gguf(path: str) -> Any:
  """Import the package `gguf`; raise UserError, naming the file that needs it, without it."""
  try:
    import gguf
  except ImportError:
    raise UserError(
      f"{path}: a GGUF file needs the package gguf; run pip install 't5x-like[gguf]'"
    ) from None
  return gguf


class _Header:
  """The bytes of a file up to its tensors, read from the front.

  Args:
    path: the file, for messages.
    content: all its bytes.
  """

  def __init__(self, path: str, content: mmap.mmap):
    self._path = path
    self._content = content
    self._size = len(content)
    self._position = 0

  def read(self, package: Any) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    """Return (metadata, tensors)."""
    magic = self._take(len(_MAGIC))
    if magic != _MAGIC:
      raise self._damage(f"found {magic!r} at its beginning, expected {_MAGIC!r}")
    version = self._number("I")
    if version not in _VERSIONS:
      versions = " or ".join(map(str, _VERSIONS))
      raise UserError(
        f"{self._path}: found version {version} of GGUF, expected {versions}, little-endian; "
        "convert the model with a recent llama.cpp"
      )
    tensor_count = self._count("tensors")
    key_count = self._count("keys")
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
      key = self._string("a key")
      if key in metadata:
        raise self._damage(f"found the key {quote_name(key)} twice")
      metadata[key] = self._value(key, self._number("I"))
    infos = [self._tensor(package) for _ in range(tensor_count)]
    return metadata, self._locate(infos, metadata.get(_ALIGNMENT, _DEFAULT_ALIGNMENT))

  def _damage(self, problem: str) -> UserError:
    """Return the error for a damaged file."""
    return UserError(f"{self._path}: {problem}; the file is damaged or no GGUF file, copy it again")

  def _take(self, length: int) -> bytes:
    """Return the next bytes, and move behind them."""
    end = self._position + length
    if end > self._size:
      raise self._damage(
        f"found its end at byte {self._size}, expected at least {length} bytes from byte "
        f"{self._position} on"
      )
    data = self._content[self._position : end]
    self._position = end
    return data

  def _number(self, form: str) -> Any:
    """Read a number of a format of `struct`."""
    return struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))[0]

  def _count(self, unit: str) -> int:
    """Return a number of keys or tensors, of which each takes some bytes of the file."""
    count = self._number("Q")
    if count * _MIN_ENTRY_BYTES > self._size:
      raise self._damage(f"found {count} {unit} in {self._size} bytes")
    return count

  def _string(self, role: str) -> str:
    """Read a string: its length in bytes and its UTF-8; `role` names it in messages."""
    data = self._take(self._number("Q"))
    try:
      return data.decode()
    except UnicodeDecodeError:
      raise self._damage(f"found {role} that is not UTF-8 before byte {self._position}") from None

  def _value(self, key: str, value_type: int) -> Any:
    if value_type == _STRING:
      return self._string(f"a value of {quote_name(key)}")
    if value_type == _ARRAY:
      return self._array(key, self._number("I"), self._number("Q"))
    if value_type not in _SCALARS:
      raise self._damage(f"found type {value_type} for the key {quote_name(key)}")
    value = self._number(_SCALARS[value_type])
    return _shortest(value) if _SCALARS[value_type] == "f" else value

  def _array(self, key: str, value_type: int, length: int) -> list[Any]:
    if value_type == _STRING:
      if length * 8 > self._size:  # each has a length of eight bytes
        raise self._damage(f"found {length} strings for the key {quote_name(key)}")
      where = f"a value of {quote_name(key)}"
      return [self._string(where) for _ in range(length)]
    if value_type not in _SCALARS:
      raise self._damage(f"found a list of type {value_type} for the key {quote_name(key)}")
    dtype = np.dtype(f"<{_SCALARS[value_type]}")
    return np.frombuffer(self._take(length * dtype.itemsize), dtype).tolist()

  def _tensor(self, package: Any) -> tuple[str, TensorInfo]:
    """Return the name of a tensor and its place, counted from the first tensor."""
    name = self._string("the name of a tensor")
    where = f"tensor {quote_name(name)}"
    axes = self._number("I")
    if not 1 <= axes <= _MAX_AXES:
      raise self._damage(f"{where} has {axes} axes, expected 1 to {_MAX_AXES}")
    # The file has the axes in reverse order.
    shape = tuple(self._number("Q") for _ in range(axes))[::-1]
    type_number = self._number("I")
    offset = self._number("Q")
    try:
      tensor_type = package.GGMLQuantizationType(type_number)
    except ValueError:
      raise self._damage(f"{where} has the type {type_number}, which is unknown") from None
    if tensor_type.name not in TENSOR_TYPES:
      raise UserError(
        f"{self._path}: {where} is of type {tensor_type.name}, expected one of "
        f"{', '.join(TENSOR_TYPES)}; convert the model with llama.cpp's llama-quantize"
      )
    block, block_bytes = package.GGML_QUANT_SIZES[tensor_type]
    values = math.prod(shape)
    if not values or shape[-1] % block or values // block * block_bytes > self._size:
      raise self._damage(f"{where} has shape {list(shape)} of {tensor_type.name}")
    return name, TensorInfo(shape, tensor_type.name, offset, values // block * block_bytes)

  def _locate(self, infos: list[tuple[str, TensorInfo]], alignment: Any) -> dict[str, TensorInfo]:
    """Return the tensors with their positions in the file, where they may not overlap."""
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
      raise self._damage(f"{_ALIGNMENT} is {quote_name(alignment)}, expected a power of two")
    first = math.ceil(self._position / alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    end = first
    for name, info in sorted(infos, key=lambda entry: entry[1].start):
      start = first + info.start
      if name in tensors:
        raise self._damage(f"found the tensor {quote_name(name)} twice")
      if start < end:
        raise self._damage(f"tensor {quote_name(name)} overlaps another")
      end = start + info.num_bytes
      if end > self._size:
        raise self._damage(
          f"tensor {quote_name(name)} ends at byte {end}, and the file at byte {self._size}"
        )
      tensors[name] = dataclasses.replace(info, start=start)
    return tensors


def _shortest(value: float) -> float:
  """Return the shortest decimal number that rounds to a float32, such as 1e-5."""
  return float(str(np.float32(value)))
