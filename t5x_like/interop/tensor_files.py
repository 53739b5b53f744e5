"""The tensors of a Hugging Face directory, read one at a time."""

import math
import pathlib
from collections.abc import Callable

import numpy as np
import safetensors

from t5x_like.errors import UserError, one_line
from t5x_like.files import checked_json, file_names
from t5x_like.files.local import LocalPath

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAPPED_BYTES = 2**28  # bytes of a file that may stay in memory after being read

_FLOATS = ("F32", "BF16", "F16", "F64")
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class TensorFiles:
  """All tensors of a directory, in one file or in several with an index.

  Args:
    directory: the directory.
    renamed: maps a name in the files to the name that `read` takes, or to "" for a tensor that is
      left out.
    body: the prefix of the body's tensors, added to all names in files of the body alone, which
      lack it.
    bare: whether names of the body alone have no prefix; one that all have, as in MiniLM's files,
      is taken off.

  Attributes:
    where: the directory, for messages.
    names: the names of all tensors.
    dtype: the dtype of the first floating-point tensor.
    held: the number of values in all tensors.

  Raises:
    UserError: there are no weights, or a file is missing, damaged or lacks a tensor of the index.
  """

  def __init__(
    self, directory: pathlib.Path, renamed: Callable[[str], str], body: str = "", bare: bool = False
  ):
    self.where = str(directory)
    index = directory / INDEX
    if (directory / WEIGHTS).is_file():  # as the library does, whatever else lies there
      file = _File(directory / WEIGHTS)
      at = dict.fromkeys(file.dtypes, file)
    elif index.is_file():
      content = checked_json.parse_json(
        read_text(index), dict, str(index), "an object with 'weight_map'; copy it again"
      )
      weight_map = content.get("weight_map")
      if not isinstance(weight_map, dict) or not all(
        isinstance(file, str) for file in weight_map.values()
      ):
        raise UserError(
          f"{index}: found no 'weight_map' from tensors to files, expected one; copy it again"
        )
      file_names.check_names(f"{index}: weight_map", weight_map.values(), "copy the model again")
      files = {name: _File(directory / name) for name in sorted(set(weight_map.values()))}
      for name, file in weight_map.items():
        if name not in files[file].dtypes:
          raise UserError(
            f"{directory / file}: tensor {name!r} is missing, which {INDEX} says is "
            "there; copy it again"
          )
      at = {name: files[file] for name, file in weight_map.items()}
    else:
      pickles = [p.name for p in directory.glob("*.bin")]
      more = (
        (f"; {pickles[0]} is a pickle, and pickles are not opened; save it again as safetensors")
        if pickles
        else ""
      )
      raise UserError(f"{directory}: found neither {WEIGHTS} nor {INDEX}{more}")
    alone = "" if any(name.startswith(body) for name in at) else body
    tops = {name.partition(".")[0] for name in at} if bare else set()
    lead = f"{tops.pop()}." if len(tops) == 1 else ""
    found = ((renamed(name.removeprefix(lead)), name, file) for name, file in at.items())
    self._at = {alone + ours: (file, name) for ours, name, file in found if ours}
    self.names = set(self._at)
    self.held = sum(math.prod(file.shapes[name]) for file, name in self._at.values())
    dtypes = (_DTYPES.get(file.dtypes[name]) for name, file in at.items())
    self.dtype = next(filter(None, dtypes), "float32")

  def lend(self, name: str, missing: str) -> None:
    """Give a tensor another name too, if no tensor has it."""
    if name in self.names and missing not in self.names:
      self._at[missing] = self._at[name]
      self.names.add(missing)

  def read(self, name: str) -> np.ndarray:
    """Read a tensor; raise UserError if it is not of floating-point numbers."""
    file, written = self._at[name]
    if file.dtypes[written] not in _FLOATS:
      raise UserError(
        f"{self.where}: tensor {written!r} is of dtype {file.dtypes[written]}, expected one of "
        f"{', '.join(_FLOATS)}; quantized models are not read, copy the original"
      )
    return file.read(written)


class _File:
  """A memory-mapped file. It is reopened now and then, because pages once read stay in memory until
  then."""

  def __init__(self, path: pathlib.Path):
    self._path = path
    self._read = 0
    self._file = self._open()
    slices = {name: self._file.get_slice(name) for name in self._file.keys()}
    self.dtypes = {name: slice.get_dtype() for name, slice in slices.items()}
    self.shapes = {name: tuple(slice.get_shape()) for name, slice in slices.items()}

  def read(self, name: str) -> np.ndarray:
    if self._read > MAPPED_BYTES:
      self._file = None
      self._read = 0
      self._file = self._open()
    tensor = np.asarray(self._file.get_tensor(name))
    self._read += tensor.nbytes
    return tensor

  def _open(self):
    try:
      return safetensors.safe_open(self._path, framework="flax")
    # ValueError: a name that is no path
    except (OSError, ValueError, safetensors.SafetensorError) as error:
      raise UserError(f"{self._path}: cannot be read ({one_line(error)}); copy it again") from error


def read_text(path: pathlib.Path) -> str:
  try:
    return LocalPath(path).read_text()
  except OSError as error:
    raise UserError(
      f"{path}: cannot be read: {error.strerror}; give a Hugging Face model directory"
    ) from error
  except UnicodeDecodeError as error:
    raise UserError(f"{path}: not UTF-8 at byte {error.start}; copy it again") from error
