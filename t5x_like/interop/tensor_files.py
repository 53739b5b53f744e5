"""Read the tensors of a Hugging Face directory one at a time."""

import math
import pathlib
from collections.abc import Callable, Iterable

import numpy as np
import safetensors

from t5x_like.errors import UserError, one_line
from t5x_like.files import checked_json, file_names
from t5x_like.files.local import LocalPath

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_MAPPED_BYTES = 2**28  # bytes of a file that may stay in memory after being read

_FLOATS = ("F32", "BF16", "F16", "F64")
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class TensorFiles:
  """All tensors of a directory, in one file or in several with an index.

  Args:
    directory: the directory.
    canonical_name: maps a name in the files to the name that `read` takes, or to "" for a tensor
      that is left out.
    body_prefix: the prefix of the body's tensors, added to all names in files of the body alone,
      which lack it.
    strip_common_prefix: whether to remove a prefix that all tensors share, as in MiniLM's files;
      names in files of the body alone have none.

  Attributes:
    where: the directory, for messages.
    names: the names of all tensors.
    dtype: the dtype of the first floating-point tensor.
    parameter_count: the number of values in all tensors.

  Raises:
    UserError: there are no weights, or a file is missing, damaged or lacks a tensor of the index.
  """

  def __init__(
    self,
    directory: pathlib.Path,
    canonical_name: Callable[[str], str],
    body_prefix: str = "",
    strip_common_prefix: bool = False,
  ):
    self.where = str(directory)
    files = _open_files(directory)
    has_prefix = any(name.startswith(body_prefix) for name in files)
    added_prefix = "" if has_prefix else body_prefix
    common_prefix = _common_prefix(files) if strip_common_prefix else ""
    # our name -> (file, name in the file)
    self._locations: dict[str, tuple[_File, str]] = {}
    for name, file in files.items():
      canonical = canonical_name(name.removeprefix(common_prefix))
      if canonical:
        self._locations[added_prefix + canonical] = (file, name)
    self.names = set(self._locations)
    self.parameter_count = sum(
      math.prod(file.shapes[name]) for file, name in self._locations.values()
    )
    known_dtypes = [
      file.dtypes[name] for name, file in files.items() if file.dtypes[name] in _DTYPES
    ]
    self.dtype = _DTYPES[known_dtypes[0]] if known_dtypes else "float32"

  def add_alias(self, name: str, alias: str) -> None:
    """Give a tensor another name too, if no tensor has it."""
    if name in self.names and alias not in self.names:
      self._locations[alias] = self._locations[name]
      self.names.add(alias)

  def name_in_file(self, name: str) -> str:
    """Return the name by which messages call a tensor."""
    return name

  def read(self, name: str) -> np.ndarray:
    """Read a tensor; raise UserError if it is not of floating-point numbers."""
    file, name_in_file = self._locations[name]
    if file.dtypes[name_in_file] not in _FLOATS:
      raise UserError(
        f"{self.where}: tensor {name_in_file!r} is of dtype {file.dtypes[name_in_file]}, expected "
        f"one of {', '.join(_FLOATS)}; quantized models are not read, copy the original"
      )
    return file.read(name_in_file)


def _open_files(directory: pathlib.Path) -> "dict[str, _File]":
  """Return the file of each tensor in a directory; see `TensorFiles` for errors."""
  index = directory / INDEX
  if (directory / WEIGHTS).is_file():  # preferred to an index, as in `transformers`
    file = _File(directory / WEIGHTS)
    return dict.fromkeys(file.dtypes, file)
  if index.is_file():
    return _open_indexed_files(directory, index)
  pickles = [path.name for path in directory.glob("*.bin")]
  advice = ""
  if pickles:
    advice = f"; {pickles[0]} is a pickle, and pickles are not opened; save it again as safetensors"
  raise UserError(f"{directory}: found neither {WEIGHTS} nor {INDEX}{advice}")


def _open_indexed_files(directory: pathlib.Path, index: pathlib.Path) -> "dict[str, _File]":
  weight_map = _read_weight_map(index)
  files = {name: _File(directory / name) for name in sorted(set(weight_map.values()))}
  for name, file in weight_map.items():
    if name not in files[file].dtypes:
      raise UserError(
        f"{directory / file}: tensor {name!r} is missing, which {INDEX} says is there; copy it "
        "again"
      )
  return {name: files[file] for name, file in weight_map.items()}


def _read_weight_map(index: pathlib.Path) -> dict[str, str]:
  """Return the name of the file of each tensor in an index."""
  content = checked_json.parse_json(
    read_text(index), dict, str(index), "an object with 'weight_map'; copy it again"
  )
  weight_map = content.get("weight_map")
  is_map = isinstance(weight_map, dict)
  if not is_map or not all(isinstance(file, str) for file in weight_map.values()):
    raise UserError(
      f"{index}: found no 'weight_map' from tensors to files, expected one; copy it again"
    )
  file_names.check_names(f"{index}: weight_map", weight_map.values(), "copy the model again")
  return weight_map


def _common_prefix(names: Iterable[str]) -> str:
  """Return the first component of all names with its dot; "" if they differ in it."""
  first_components = {name.partition(".")[0] for name in names}
  return f"{first_components.pop()}." if len(first_components) == 1 else ""


class _File:
  """A memory-mapped file.

  It is reopened after every `MAX_MAPPED_BYTES`, because the pages read stay in memory until then.
  """

  def __init__(self, path: pathlib.Path):
    self._path = path
    self._bytes_read = 0
    self._file = self._open()
    slices = {name: self._file.get_slice(name) for name in self._file.keys()}
    self.dtypes = {name: slice.get_dtype() for name, slice in slices.items()}
    self.shapes = {name: tuple(slice.get_shape()) for name, slice in slices.items()}

  def read(self, name: str) -> np.ndarray:
    if self._bytes_read > MAX_MAPPED_BYTES:
      self._file = None
      self._bytes_read = 0
      self._file = self._open()
    tensor = np.asarray(self._file.get_tensor(name))
    self._bytes_read += tensor.nbytes
    return tensor

  def _open(self):
    try:
      return safetensors.safe_open(self._path, framework="flax")
    # ValueError: a name that is no path
    except (OSError, ValueError, safetensors.SafetensorError) as error:
      raise UserError(f"{self._path}: cannot be read ({one_line(error)}); copy it again") from error


def read_text(path: pathlib.Path) -> str:
  """Read a text file of a model directory; raise UserError if it cannot be read."""
  try:
    return LocalPath(path).read_text()
  except OSError as error:
    raise UserError(
      f"{path}: cannot be read: {error.strerror}; give a Hugging Face model directory"
    ) from error
  except UnicodeDecodeError as error:
    raise UserError(f"{path}: not UTF-8 at byte {error.start}; copy it again") from error
