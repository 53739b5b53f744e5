"""The arrays of a T5X checkpoint, read one at a time.

A checkpoint directory holds `checkpoint`, a msgpack index of nested dictionaries. A leaf is an
array, or TensorStore's spec of one that lies beside the index as Zarr. Checkpoints that T5X saves
through Orbax hold placeholders in place of specs, or have `_METADATA` in place of the index, and
may keep all arrays in one OCDBT database. Of a spec, only the array's name and shape are used; its
store is always the directory itself.
"""

import dataclasses
import functools
import math
import os
import re
from typing import Any

import msgpack
import numpy as np
from flax import serialization

from t5x_like.errors import UserError, did_you_mean, one_line
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
# bytes of an array per stored byte, at most: gzip's limit; and a loose one
_DENSEST = {"zarr": 1_100, "ocdbt": 2**16}
_DTYPES = ("float32", "bfloat16", "float16", "float64", "int32", "int64")
_STEP = re.compile(r"checkpoint_(\d+)/?")


@dataclasses.dataclass(frozen=True)
class _Stored:
  """An array beside the index: its name there, and the shape that the index states, if any."""

  name: str
  shape: tuple[int, ...] | None = None


class Checkpoint:
  """A checkpoint directory of T5X.

  Args:
    path: the directory of a checkpoint, or one that holds several, of which the newest is read;
      local, or at an address that TensorStore serves.

  Attributes:
    where: the directory that holds the index, for messages.
    names: the names of all arrays, such as `target/encoder/layers_0/mlp/wi/kernel`.

  Raises:
    UserError: the directory has no index, or the index is damaged or names a file outside of the
      directory.
  """

  def __init__(self, path: str):
    directory = _directory(as_path(path))
    self.where, self._ocdbt = str(directory), (directory / OCDBT).exists()
    self._below = functools.partial(_store, directory)
    self._stored = None if is_remote(self.where) else sum(_sizes(self.where))
    found = _index(directory)
    leaves = dict(_flat(found.get("optimizer", found), ()))
    self._leaves = {"/".join(keys): self._leaf(keys, leaf) for keys, leaf in leaves.items()}
    self.names = {name for name, leaf in self._leaves.items() if leaf is not None}

  def shape(self, name: str) -> tuple[int, ...]:
    """Return the shape of an array without reading it; raise UserError if it is missing or
    impossible."""
    leaf = self._known(name)
    return leaf.shape if isinstance(leaf, np.ndarray) else tuple(self._open(name, leaf).shape)

  def read(self, name: str) -> np.ndarray:
    """Return an array, as float32 unless it holds integers; raise UserError if it is missing or
    damaged."""
    leaf = self._known(name)
    if isinstance(leaf, np.ndarray):
      array = leaf
    else:
      opened = self._open(name, leaf)
      try:
        array = opened.read().result()
      except (ValueError, OSError, MemoryError) as error:
        raise UserError(
          f"{self.where}: array {leaf.name!r} cannot be read ({one_line(error)[:200]}), expected "
          "all of its chunks; copy the checkpoint again"
        ) from error
    return array if np.issubdtype(array.dtype, np.integer) else np.asarray(array, np.float32)

  def _known(self, name: str):
    if name not in self.names:
      raise UserError(
        f"{self.where}: array {name!r} is missing{did_you_mean(name, self.names)}, expected the "
        "tree of T5X's `minimal` or `scalable_t5` encoder-decoder; the checkpoint is of another "
        "model or incomplete"
      )
    return self._leaves[name]

  def _leaf(self, keys: tuple[str, ...], leaf: Any) -> np.ndarray | _Stored | None:
    """Return an array of the index, or where it is stored; None for anything else."""
    key = f"{self.where}/{INDEX}: {'/'.join(keys)}"
    if isinstance(leaf, str) and leaf.startswith(_PLACEHOLDER):
      leaf = _Stored(leaf.removeprefix(_PLACEHOLDER))
    elif isinstance(leaf, dict):
      store = leaf.get("kvstore")
      # the latter before 2021
      name = (store.get("path") if isinstance(store, dict) else None) or leaf.get("path")
      leaf = _Stored(name.rstrip("/") if isinstance(name, str) else name, _shape(key, leaf))
    elif isinstance(leaf, np.ndarray | np.generic | int | float):
      array = np.asarray(leaf)
      return array if array.dtype.name in _DTYPES else None
    if isinstance(leaf, _Stored):
      file_names.check_name(key, leaf.name, "copy the checkpoint again")
      return leaf
    return None

  def _open(self, name: str, leaf: _Stored):
    """Open a stored array, and check its dtype, its shape and that it is not larger than its files
    can hold."""
    import tensorstore as ts

    store = {"driver": "ocdbt", "base": self._below(""), "path": f"{leaf.name}/"}
    spec = {"driver": "zarr", "fill_missing_data_reads": False}
    spec["kvstore"] = store if self._ocdbt else self._below(f"{leaf.name}/")
    try:
      opened = ts.open(spec, open=True, read=True).result()
    except (ValueError, OSError) as error:
      raise UserError(
        f"{self.where}: array {leaf.name!r} cannot be opened ({one_line(error)[:200]}), expected "
        "a Zarr array, as the index states; copy the checkpoint again"
      ) from error
    shape = tuple(opened.shape)
    dtype = opened.dtype.name
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
    size = math.prod(shape) * opened.dtype.numpy_dtype.itemsize
    held = (
      self._stored
      if self._ocdbt or self._stored is None
      else sum(_sizes(f"{self.where}/{leaf.name}"))
    )
    if held is not None and size > held * _DENSEST["ocdbt" if self._ocdbt else "zarr"]:
      raise UserError(
        f"{self.where}: array {leaf.name!r} claims shape {list(shape)}, {size:,} bytes, found "
        f"{held:,} bytes of files; "
        "copy the checkpoint again"
      )
    return opened


def _directory(path: AnyPath) -> AnyPath:
  """Return the directory with the index: of the newest of several checkpoints, or in the state of
  an Orbax one."""
  for candidate in (path, path / _STATE):
    if any((candidate / name).exists() for name in (INDEX, METADATA)):
      return candidate
  try:
    names = path.names() if path.is_dir() else []
  except OSError as error:
    raise UserError(f"{path}: cannot be listed ({one_line(error)}); check the path") from error
  steps = {int(match[1]): name for name in names if (match := _STEP.fullmatch(name))}
  if steps:
    return _directory(path / steps[max(steps)].rstrip("/"))
  raise UserError(
    f"{path}: found neither {INDEX} nor {METADATA} there, expected a checkpoint directory of T5X, "
    "such as checkpoint_1000000"
  )


def _index(directory: AnyPath) -> dict[str, Any]:
  """Return the tree of a checkpoint's leaves."""
  file = directory / INDEX
  if not file.exists():
    return _of_metadata(directory / METADATA)
  try:
    data = file.read_bytes()
  except OSError as error:
    raise UserError(f"{file}: cannot be read ({one_line(error)})") from error
  if data.startswith(b"model_checkpoint_path"):
    raise UserError(
      f"{file}: found a checkpoint of TensorFlow, expected one of T5X; convert it with T5X first"
    )
  try:
    found = serialization.msgpack_restore(data)
  except (
    ValueError,
    TypeError,
    KeyError,
    OverflowError,
    AttributeError,
    RecursionError,
    MemoryError,
  ) as error:
    found = None
    why = f" ({type(error).__name__}: {one_line(error)[:200]})"
  except msgpack.UnpackException as error:
    found = None
    why = f" ({type(error).__name__}: {one_line(error)[:200]})"
  else:
    why = ""
  tree = found.get("optimizer", found) if isinstance(found, dict) else None
  if not isinstance(tree, dict) or not isinstance(tree.get("target"), dict):
    raise UserError(
      f"{file}: found no index of T5X{why}, expected msgpack with the key 'target'; copy it again"
    )
  version = found.get("version", 3)
  if version not in (2, 3):
    raise UserError(
      f"{file}: found version {quote_name(version)}, expected 2 or 3; save it with a newer T5X"
    )
  return found


def _of_metadata(file: AnyPath) -> dict[str, Any]:
  """Return the tree that Orbax's metadata describes, with placeholders as leaves."""
  described = checked_json.parse_json(
    file.read_bytes(), dict, str(file), "the metadata of an Orbax checkpoint; copy it again"
  )
  if described.get("use_zarr3"):
    raise UserError(
      f"{file}: found arrays in Zarr 3, expected Zarr 2, as T5X writes; save them "
      "with use_zarr3=False"
    )
  tree: dict[str, Any] = {}
  entries = described.get("tree_metadata")
  for key, entry in entries.items() if isinstance(entries, dict) else ():
    keys = _keys(entry)
    value = entry.get("value_metadata", {}) if isinstance(entry, dict) else {}
    if not keys or not isinstance(value, dict):
      raise UserError(
        f"{file}: found the entry {quote_name(key)}, expected a path of names; copy the checkpoint again"
      )
    node = tree
    for one in keys[:-1]:
      node = node.setdefault(one, {})
      if not isinstance(node, dict):
        raise UserError(
          f"{file}: found {quote_name(key)} below an array, expected a tree; copy the checkpoint again"
        )
    if value.get("value_type") not in (None, "None", "Dict"):
      node[keys[-1]] = _PLACEHOLDER + ".".join(keys)
  if not isinstance(tree.get("target"), dict):
    raise UserError(
      f"{file}: found no arrays below 'target', expected the train state of T5X; give its directory"
    )
  return tree


def _keys(entry: Any) -> tuple[str, ...]:
  path = entry.get("key_metadata") if isinstance(entry, dict) else None
  keys = [one.get("key") for one in path if isinstance(one, dict)] if isinstance(path, list) else []
  return tuple(keys) if all(isinstance(key, str) for key in keys) else ()


def _flat(node: Any, keys: tuple[str, ...]):
  """Yield (keys, leaf) of a tree; a spec of TensorStore is a leaf."""
  if not isinstance(node, dict) or {"driver", "kvstore"} <= node.keys():
    yield keys, node
    return
  for key, inner in node.items():
    yield from _flat(inner, (*keys, str(key)))


def _shape(key: str, spec: dict[str, Any]) -> tuple[int, ...] | None:
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
  if not isinstance(sizes, list) or not all(
    isinstance(size, int) and 0 < size < 2**40 for size in sizes
  ):
    raise UserError(
      f"{key}: found the shape {quote_name(shape)}, expected positive sizes; copy the checkpoint again"
    )
  return tuple(sizes)


def _store(directory: AnyPath, name: str) -> str | dict[str, str]:
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


def _sizes(directory: str):
  """Yield the sizes of all files below a local directory."""
  for folder, _, files in os.walk(directory):
    for file in files:
      try:
        yield os.path.getsize(os.path.join(folder, file))
      except OSError:
        continue
