"""Read the arrays of a T5X checkpoint one at a time.

A checkpoint directory holds `checkpoint`, a msgpack index of nested dictionaries. A leaf is an
array, or TensorStore's spec of one that is stored next to the index as Zarr. Checkpoints that T5X
saves through Orbax hold placeholders instead of specs, or have `_METADATA` instead of the index,
and may keep all arrays in one OCDBT database. Of a spec, only the array's name and shape are used:
arrays are always read from the directory itself.
"""

import dataclasses
import functools
import math
import os
import re
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
from flax import serialization

from t5x_like.errors import UserError, did_you_mean, one_line, unreadable_file_error
from t5x_like.files import checked_json, file_names
from t5x_like.files.clients import TENSORSTORE
from t5x_like.files.file_names import quote_name
from t5x_like.files.local import LocalPath
from t5x_like.files.paths import AnyPath, as_path, is_remote

INDEX = "checkpoint"
METADATA = "_METADATA"
OCDBT = "manifest.ocdbt"
_STATE = "state"  # the directory of the train state in a checkpoint saved through Orbax
_PLACEHOLDER = "PLACEHOLDER://"
# An array has at most this many bytes per stored byte: gzip's limit for Zarr, a generous one for
# OCDBT.
_MAX_EXPANSION = {"zarr": 1_100, "ocdbt": 2**16}
_DTYPES = ("float32", "bfloat16", "float16", "float64", "int32", "int64")
# raised by msgpack and by flax for damaged content
_MSGPACK_ERRORS = (
  ValueError,
  TypeError,
  KeyError,
  OverflowError,
  AttributeError,
  RecursionError,
  MemoryError,
  msgpack.UnpackException,
)
_STEP = re.compile(r"checkpoint_(\d+)/?")


@dataclasses.dataclass(frozen=True)
class _StoredArray:
  """An array next to the index: its name there, and the shape that the index states, if any."""

  name: str
  shape: tuple[int, ...] | None = None


class Checkpoint:
  """A checkpoint directory of T5X.

  Args:
    path: the directory of a checkpoint, or one that holds several, of which the newest is read;
      local, or at an address that TensorStore reads.

  Attributes:
    where: the directory that holds the index, for messages.
    names: the names of all arrays, such as `target/encoder/layers_0/mlp/wi/kernel`.

  Raises:
    UserError: the directory has no index, or the index is damaged or names a file outside of the
      directory.
  """

  def __init__(self, path: str):
    directory = _find_directory(as_path(path))
    self.where = str(directory)
    self._is_ocdbt = (directory / OCDBT).exists()
    self._key_value_store = functools.partial(_key_value_store, directory)
    self._stored_bytes = None if is_remote(self.where) else _total_bytes(self.where)
    index = _read_index(directory)
    tree = index.get("optimizer", index)  # T5X itself writes the train state below this key
    self._leaves = {}
    for keys, content in _flatten(tree, ()):
      leaf = self._parse_leaf(keys, content)
      if leaf is not None:
        self._leaves["/".join(keys)] = leaf
    self.names = set(self._leaves)

  def shape(self, name: str) -> tuple[int, ...]:
    """Return the shape of an array without reading it.

    Raises:
      UserError: the array is missing, or its shape is impossible.
    """
    leaf = self._find_leaf(name)
    if isinstance(leaf, np.ndarray):
      return leaf.shape
    return tuple(self._open(leaf).shape)

  def read(self, name: str) -> np.ndarray:
    """Return an array, converted to float32 unless it has integers.

    Raises:
      UserError: the array is missing or damaged.
    """
    leaf = self._find_leaf(name)
    if isinstance(leaf, np.ndarray):
      array = leaf
    else:
      stored = self._open(leaf)
      try:
        array = stored.read().result()
      except (ValueError, OSError, MemoryError) as error:
        raise UserError(
          f"{self.where}: array {leaf.name!r} cannot be read ({one_line(error)[:200]}), expected "
          "all of its chunks; copy the checkpoint again"
        ) from error
    return array if np.issubdtype(array.dtype, np.integer) else np.asarray(array, np.float32)

  def _find_leaf(self, name: str) -> np.ndarray | _StoredArray:
    if name not in self.names:
      raise UserError(
        f"{self.where}: array {name!r} is missing{did_you_mean(name, self.names)}, expected the "
        "tree of T5X's `minimal` or `scalable_t5` encoder-decoder; the checkpoint is of another "
        "model or incomplete"
      )
    return self._leaves[name]

  def _parse_leaf(self, keys: tuple[str, ...], content: Any) -> np.ndarray | _StoredArray | None:
    """Return an array of the index, or its location in the files; None for anything else."""
    key = f"{self.where}/{INDEX}: {'/'.join(keys)}"
    if isinstance(content, np.ndarray | np.generic | int | float):
      array = np.asarray(content)
      return array if array.dtype.name in _DTYPES else None
    if isinstance(content, str) and content.startswith(_PLACEHOLDER):
      name = content.removeprefix(_PLACEHOLDER)
      shape = None
    elif isinstance(content, dict):
      store = content.get("kvstore")
      name = store.get("path") if isinstance(store, dict) else None
      name = name or content.get("path")  # in files of T5X before 2021
      if isinstance(name, str):
        name = name.rstrip("/")
      shape = _read_shape(key, content)
    else:
      return None
    file_names.check_name(key, name, "copy the checkpoint again")
    return _StoredArray(name, shape)

  def _open(self, leaf: _StoredArray):
    """Open a stored array, and check its dtype, its shape, and its size against its files."""
    import tensorstore as ts

    if self._is_ocdbt:
      store = {"driver": "ocdbt", "base": self._key_value_store(""), "path": f"{leaf.name}/"}
    else:
      store = self._key_value_store(f"{leaf.name}/")
    spec = {"driver": "zarr", "fill_missing_data_reads": False, "kvstore": store}
    try:
      array = ts.open(spec, open=True, read=True).result()
    except (ValueError, OSError) as error:
      raise UserError(
        f"{self.where}: array {leaf.name!r} cannot be opened ({one_line(error)[:200]}), expected "
        "a Zarr array, as the index states; copy the checkpoint again"
      ) from error
    self._check_array(array, leaf)
    return array

  def _check_array(self, array, leaf: _StoredArray) -> None:
    """Refuse an unknown dtype, a shape that the index contradicts, or more bytes than stored."""
    shape = tuple(array.shape)
    dtype = array.dtype.name
    if dtype not in _DTYPES:
      raise UserError(
        f"{self.where}: array {leaf.name!r} is of dtype {dtype}, expected one of "
        f"{', '.join(_DTYPES)}"
      )
    if leaf.shape is not None and shape != leaf.shape:
      raise UserError(
        f"{self.where}: array {leaf.name!r} has shape {list(shape)}, expected {list(leaf.shape)} "
        "as the index states; copy the checkpoint again"
      )
    size = math.prod(shape) * array.dtype.numpy_dtype.itemsize
    if self._stored_bytes is None:
      return
    if self._is_ocdbt:
      stored_bytes = self._stored_bytes
      max_expansion = _MAX_EXPANSION["ocdbt"]
    else:
      stored_bytes = _total_bytes(f"{self.where}/{leaf.name}")
      max_expansion = _MAX_EXPANSION["zarr"]
    if size > stored_bytes * max_expansion:
      raise UserError(
        f"{self.where}: array {leaf.name!r} claims shape {list(shape)}, {size:,} bytes, found "
        f"{stored_bytes:,} bytes of files; copy the checkpoint again"
      )


def _find_directory(path: AnyPath) -> AnyPath:
  """Return the directory with the index.

  It is the directory itself, the newest of several checkpoints below it, or the state of an Orbax
  checkpoint.
  """
  for candidate in (path, path / _STATE):
    if any((candidate / name).exists() for name in (INDEX, METADATA)):
      return candidate
  try:
    names = path.names() if path.is_dir() else []
  except OSError as error:
    raise UserError(f"{path}: cannot be listed ({one_line(error)}); check the path") from error
  steps = {}
  for name in names:
    match = _STEP.fullmatch(name)
    if match:
      steps[int(match[1])] = name
  if steps:
    return _find_directory(path / steps[max(steps)].rstrip("/"))
  raise UserError(
    f"{path}: found neither {INDEX} nor {METADATA} there, expected a checkpoint directory of T5X, "
    "such as checkpoint_1000000"
  )


def _read_index(directory: AnyPath) -> dict[str, Any]:
  """Return the tree of a checkpoint's leaves."""
  file = directory / INDEX
  if not file.exists():
    return _read_metadata(directory / METADATA)
  try:
    content = file.read_bytes()
  except OSError as error:
    raise unreadable_file_error(str(file), error) from error
  if content.startswith(b"model_checkpoint_path"):
    raise UserError(
      f"{file}: found a checkpoint of TensorFlow, expected one of T5X; convert it with T5X first"
    )
  why = ""
  try:
    index = serialization.msgpack_restore(content)
  except _MSGPACK_ERRORS as error:
    index = None
    why = f" ({type(error).__name__}: {one_line(error)[:200]})"
  tree = index.get("optimizer", index) if isinstance(index, dict) else None
  if not isinstance(tree, dict) or not isinstance(tree.get("target"), dict):
    raise UserError(
      f"{file}: found no index of T5X{why}, expected msgpack with the key 'target'; copy it again"
    )
  version = index.get("version", 3)
  if version not in (2, 3):
    raise UserError(
      f"{file}: found version {quote_name(version)}, expected 2 or 3; save it with a newer T5X"
    )
  return index


def _read_metadata(file: AnyPath) -> dict[str, Any]:
  """Return the tree that Orbax's metadata describes, with placeholders as leaves."""
  metadata = checked_json.parse_json(
    file.read_bytes(), dict, str(file), "the metadata of an Orbax checkpoint; copy it again"
  )
  if metadata.get("use_zarr3"):
    raise UserError(
      f"{file}: found arrays in Zarr 3, expected Zarr 2, as T5X writes; save them "
      "with use_zarr3=False"
    )
  tree: dict[str, Any] = {}
  entries = metadata.get("tree_metadata")
  if isinstance(entries, dict):
    for key, entry in entries.items():
      _add_entry(tree, file, key, entry)
  if not isinstance(tree.get("target"), dict):
    raise UserError(
      f"{file}: found no arrays below 'target', expected the train state of T5X; give its directory"
    )
  return tree


def _add_entry(tree: dict[str, Any], file: AnyPath, key: str, entry: Any) -> None:
  """Add an entry of Orbax's metadata to a tree."""
  keys = _read_keys(entry)
  value = entry.get("value_metadata", {}) if isinstance(entry, dict) else {}
  if not keys or not isinstance(value, dict):
    raise UserError(
      f"{file}: found the entry {quote_name(key)}, expected a path of names; copy the checkpoint "
      "again"
    )
  node = tree
  for name in keys[:-1]:
    node = node.setdefault(name, {})
    if not isinstance(node, dict):
      raise UserError(
        f"{file}: found {quote_name(key)} below an array, expected a tree; copy the checkpoint "
        "again"
      )
  # An entry without a value, or with an empty dictionary, has no array.
  if value.get("value_type") not in (None, "None", "Dict"):
    node[keys[-1]] = _PLACEHOLDER + ".".join(keys)


def _read_keys(entry: Any) -> tuple[str, ...]:
  """Return the path of an entry of Orbax's metadata, () if it is damaged."""
  path = entry.get("key_metadata") if isinstance(entry, dict) else None
  if not isinstance(path, list):
    return ()
  keys = tuple(part.get("key") for part in path if isinstance(part, dict))
  return keys if all(isinstance(key, str) for key in keys) else ()


def _flatten(node: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
  """Yield (keys, leaf) of a tree; a spec of TensorStore is a leaf."""
  if not isinstance(node, dict) or {"driver", "kvstore"} <= node.keys():
    yield keys, node
    return
  for key, inner in node.items():
    yield from _flatten(inner, (*keys, str(key)))


def _read_shape(key: str, spec: dict[str, Any]) -> tuple[int, ...] | None:
  """Return the shape in a spec of TensorStore, None if it states none."""
  metadata = spec.get("metadata")
  if spec.get("driver") != "zarr":
    raise UserError(
      f"{key}: found the driver {quote_name(spec.get('driver'))}, expected 'zarr'; copy "
      "the checkpoint again"
    )
  shape = metadata.get("shape") if isinstance(metadata, dict) else None
  if shape is None:
    return None
  # flax stores a list as {"0": …, "1": …}
  sizes = list(shape.values()) if isinstance(shape, dict) else shape
  is_list = isinstance(sizes, list)
  if not is_list or not all(isinstance(size, int) and 0 < size < 2**40 for size in sizes):
    raise UserError(
      f"{key}: found the shape {quote_name(shape)}, expected positive sizes; copy the checkpoint "
      "again"
    )
  return tuple(sizes)


def _key_value_store(directory: AnyPath, name: str) -> str | dict[str, str]:
  """Return TensorStore's spec of the files below a name in the directory."""
  if isinstance(directory, LocalPath):
    return {"driver": "file", "path": f"{os.path.abspath(directory)}/{name}"}
  scheme = str(directory).partition("://")[0]
  if scheme not in TENSORSTORE:
    raise UserError(
      f"{directory}: found the scheme {scheme!r}, expected a local directory or gs://; copy it "
      "here first"
    )
  return f"{directory}/{name}"


def _total_bytes(directory: str) -> int:
  """Return the size of all files below a local directory."""
  total = 0
  for folder, _, files in os.walk(directory):
    for file in files:
      try:
        total += os.path.getsize(os.path.join(folder, file))
      except OSError:
        continue
  return total
