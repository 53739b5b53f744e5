"""The tensors of a Hugging Face directory, read one at a time."""

import json
import pathlib
from collections.abc import Callable

import numpy as np
import safetensors

from t5x_like import file_names
from t5x_like.errors import UserError, one_line

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MAPPED_BYTES = 2**28  # how much of a file may stay in memory after being read

_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class Files:
  """All tensors of a directory: one file, or several with an index.

  Args:
    directory: where they are.
    renamed: maps a name in the files to the name that `read` takes.

  Attributes:
    where: the directory, for messages.
    names: of all tensors.
    dtype: of the first floating-point tensor.

  Raises:
    UserError: no weights, or a file that is missing, damaged or lacks a tensor of the index.
  """

  def __init__(self, directory: pathlib.Path, renamed: Callable[[str], str]):
    self.where = str(directory)
    index = directory / INDEX
    if index.is_file():
      try:
        weight_map = json.loads(read_text(index))["weight_map"]
        file_names.check_all(f"{index}: weight_map", weight_map.values(), "copy the model again")
      except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index}: cannot be read ({one_line(error)}); copy it again") from error
      files = {name: _File(directory / name) for name in sorted(set(weight_map.values()))}
      for name, file in weight_map.items():
        if name not in files[file].dtypes:
          raise UserError(f"{directory / file}: tensor {name!r} is missing, which {INDEX} says is there; copy it again")
      at = {name: files[file] for name, file in weight_map.items()}
    elif (directory / WEIGHTS).is_file():
      file = _File(directory / WEIGHTS)
      at = dict.fromkeys(file.dtypes, file)
    else:
      pickles = [p.name for p in directory.glob("*.bin")]
      more = f"; {pickles[0]} is a pickle, and pickles are not opened; save it again as safetensors" if pickles else ""
      raise UserError(f"{directory}: found neither {WEIGHTS} nor {INDEX}{more}")
    self._at = {renamed(name): (file, name) for name, file in at.items()}
    self.names = set(self._at)
    dtypes = (_DTYPES.get(file.dtypes[name]) for name, file in at.items())
    self.dtype = next(filter(None, dtypes), "float32")

  def read(self, name: str) -> np.ndarray:
    file, written = self._at[name]
    return file.read(written)


class _File:
  """One memory-mapped file. It is reopened now and then, because what was read stays in memory until then."""

  def __init__(self, path: pathlib.Path):
    self._path, self._read = path, 0
    self._file = self._open()
    self.dtypes = {name: self._file.get_slice(name).get_dtype() for name in self._file.keys()}  # noqa: SIM118

  def read(self, name: str) -> np.ndarray:
    if self._read > MAPPED_BYTES:
      self._file, self._read = None, 0
      self._file = self._open()
    tensor = np.asarray(self._file.get_tensor(name))
    self._read += tensor.nbytes
    return tensor

  def _open(self):
    try:
      return safetensors.safe_open(self._path, framework="flax")
    except (OSError, safetensors.SafetensorError) as error:
      raise UserError(f"{self._path}: cannot be read ({one_line(error)}); copy it again") from error


def read_text(path: pathlib.Path) -> str:
  try:
    return path.read_text(encoding="utf-8")
  except OSError as error:
    raise UserError(f"{path}: cannot be read: {error.strerror}; give a Hugging Face model directory") from error
  except UnicodeDecodeError as error:
    raise UserError(f"{path}: not UTF-8 at byte {error.start}; copy it again") from error
