"""The steps that the processes of a job hold near them: each its own shards, which can reach others over the mesh."""

import concurrent.futures
import contextlib
import functools
import json
import logging
import math
import pathlib
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from t5x_like.checkpoints.manifest import Damaged
from t5x_like.checkpoints.tensors import Copies
from t5x_like.errors import one_line
from t5x_like.files.local import Local
from t5x_like.runtime import process

_MANIFEST, _INDEX, _DATA = "manifest.json", "pieces.json", "pieces.bin"
_COPY = re.compile(r"([0-9]+)-[0-9]+(\.tmp)?")
_MOST = 4  # steps that a process may hold: two, and more for a moment after a start
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}  # by the bytes of a type; the state has no 64-bit arrays
_log = logging.getLogger("t5x_like.checkpoint")
Start = tuple[int, ...]  # of a shard along each axis of its tensor


class Starts(Protocol):
  """The starts of a run; see `emergency.Starts`."""

  known: list[list]
  current: str

  def counts(self, start: str, step: int) -> bool: ...


class NearSteps:
  """The steps that the processes hold near them; `orbax_steps.LocalSteps` documents the methods.

  A copy is a directory `<start>/<step>-<process>/`, renamed into place once whole. It is not flushed to the disk: after
  a loss of power its checksums tell, and another slice has the step.

  Attributes:
    least: older steps do not count.
  """

  def __init__(self, directory: str, starts: Starts):
    self._directory, self._starts, self.least = Local(directory), starts, 0
    self._copies, self._pool = Copies(), concurrent.futures.ThreadPoolExecutor(1, "emergency")
    self._writing: concurrent.futures.Future | None = None
    self._last, self._agreed = 0, b""  # the last step written or read; the manifest that all go by

  def where(self, step: int) -> str:
    return f"{self._directory} (step {step})"

  def steps(self) -> list[int]:
    return sorted({step for start, step, path in self._found() if path.suffix != ".tmp" and self._counts(start, step)})

  def committed(self, step: int) -> bool:
    return step in self.steps()

  def agreed_steps(self) -> list[int]:
    """Return the steps that any process holds; as all meet here after `wait`, older copies are no longer needed."""
    mine = self.steps()[-_MOST:]
    held = _from_all(np.array(mine + [-1] * (_MOST - len(mine)), np.int32))
    return sorted({int(step) for step in held.ravel() if step >= self.least})

  def manifest(self, step: int) -> str:
    """Return the manifest of the first process that holds the step."""
    mine = next(iter(self._manifests(step).values()), b"")
    sizes = _from_all(np.array([len(mine)], np.int32)).ravel()
    if not sizes.any():
      raise FileNotFoundError(f"{self.where(step)}: no process holds it")
    source = int(np.flatnonzero(sizes)[0])
    sent = np.zeros(sizes[source], np.uint8)
    if jax.process_index() == source:
      sent[:] = np.frombuffer(mine, np.uint8)
    whole = multihost_utils.broadcast_one_to_all(sent, is_source=jax.process_index() == source)
    self._agreed = np.asarray(whole, np.uint8).tobytes()
    return self._agreed.decode()

  def read(self, step: int, wanted: dict[str, Any], partial: bool) -> dict[str, jax.Array]:
    """Return tensors by name, from the copies at home or, where one is missing, over the mesh.

    Raises:
      Damaged: no process has an intact copy of some shard; the same in all processes.
    """
    own = self._own(step, wanted)
    held = _from_all(np.array([own is not None], np.int32)).ravel().astype(bool)
    lacking = next((name for name, x in wanted.items() if not _covered(x, held)), None)
    if lacking:
      raise Damaged(f"no process holds some shards of tensor {lacking} ({held.sum()} of {held.size} hold theirs)")
    others = "" if held.all() else "; the others receive their shards over the mesh"
    process.say(f"step {step}: {held.sum()} of {held.size} processes read their emergency copies{others}")
    self._last = step
    if held.all():
      return {name: jax.make_array_from_callback(x.shape, x.sharding, _taken(own[name])) for name, x in wanted.items()}
    return {name: from_replicas(x, own and own[name]) for name, x in wanted.items()}

  def write(
    self, step: int, tensors: dict[str, jax.Array], manifest: dict[str, Any], before: Callable[[], None]
  ) -> None:
    self._remove_older(step)
    self._last = step
    copies, pieces = self._copies(tensors), {}
    for name, x in (copies or tensors).items():
      for shard in x.addressable_shards:
        # Without copies, the tensor may be donated as soon as this returns.
        pieces[name, _start(shard.index)] = shard.data if copies else np.array(shard.data, copy=True)
    folder = self._directory / self._starts.current / f"{step}-{jax.process_index()}"
    self._writing = self._pool.submit(self._write, folder, pieces, json.dumps(manifest, sort_keys=True), before)

  def wait(self) -> None:
    writing, self._writing = self._writing, None
    if writing is not None:
      writing.result()

  def close(self) -> None:
    try:
      self.wait()
    finally:
      self._pool.shutdown()

  def _write(self, folder: pathlib.Path, pieces: dict, manifest: str, before: Callable[[], None]) -> None:
    before()
    aside = folder.with_name(f"{folder.name}.tmp")
    try:
      shutil.rmtree(aside, ignore_errors=True)
      aside.mkdir(mode=0o700, parents=True)
      index, offset = [], 0
      with open(aside / _DATA, "wb") as file:
        for (name, start), piece in pieces.items():
          data = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
          file.write(data)
          index.append([name, start, offset, data.size, zlib.crc32(data)])
          offset += data.size
      (aside / _INDEX).write_text(json.dumps(index))
      (aside / _MANIFEST).write_text(manifest)
      aside.rename(folder)
    except OSError as error:  # the run goes on: this is no checkpoint that it has promised
      _log.warning("%s: no emergency copy: %s; free space there", folder, error.strerror or one_line(error))

  def _own(self, step: int, wanted: Mapping[str, Any]) -> dict[str, dict[Start, np.ndarray]] | None:
    """Return the shards of this process's devices, by tensor; None, with a warning, if one is missing or damaged."""
    where, found = {}, {}
    try:
      for folder, manifest in self._manifests(step).items():
        if manifest == self._agreed:
          index = json.loads((folder / _INDEX).read_bytes())
          where |= {(name, tuple(start)): (folder / _DATA, *rest) for name, start, *rest in index}
      if not where:
        return None
      for name, x in wanted.items():
        shape, found[name] = x.sharding.shard_shape(x.shape), {}
        for index in x.sharding.addressable_devices_indices_map(x.shape).values():
          start = _start(index)
          if start not in found[name]:
            file, offset, size, check = where[name, start]
            if size != math.prod(shape) * x.dtype.itemsize:
              raise ValueError(f"tensor {name} has shards of another shape")
            data = np.fromfile(file, np.uint8, size, offset=offset)
            if zlib.crc32(data) != check:
              raise ValueError(f"tensor {name} differs from its checksum")
            found[name][start] = data.view(x.dtype).reshape(shape)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
      _log.warning("%s: the copy of this host is not used: %s", self.where(step), one_line(error)[:200])
      return None
    return found

  def _manifests(self, step: int) -> dict[pathlib.Path, bytes]:
    """Return the copies of a step on this host, with their manifests."""
    found = {}
    for start, one, path in self._found():
      if one == step and path.suffix != ".tmp" and self._counts(start, one):
        with contextlib.suppress(OSError):
          found[path] = (path / _MANIFEST).read_bytes()
    return found

  def _counts(self, start: str, step: int) -> bool:
    return step >= self.least and self._starts.counts(start, step)

  def _found(self) -> Iterator[tuple[str, int, pathlib.Path]]:
    """Yield start, step and directory of the run's copies on this host, unfinished ones too."""
    for start, _ in self._starts.known:
      for name in (self._directory / start).names():
        if match := _COPY.fullmatch(name):
          yield start, int(match[1]), self._directory / start / name

  def _remove_older(self, step: int) -> None:
    """Remove the copies that no start will read: all processes hold the last step, or another slice does."""
    for start, one, path in list(self._found()):
      unfinished = path.suffix == ".tmp" and one < step
      if unfinished or one < self._last or not self._starts.counts(start, one):
        shutil.rmtree(path, ignore_errors=True)
        if start != self._starts.current:
          with contextlib.suppress(OSError):
            path.parent.rmdir()


def from_replicas(x: jax.ShapeDtypeStruct, own: Mapping[Start, np.ndarray] | None) -> jax.Array:
  """Return a tensor whose shards some of the devices hold: the others receive them over the axes that repeat it.

  Devices that hold no shard give zeros, and the bits of a tensor are the greatest of its replicas', so that nobody
  needs to know who holds what. All processes must call it.

  Args:
    x: shape, type and sharding, of a named mesh.
    own: the shards of this process's devices by their starts; None if it holds none.
  """
  sharding, bits = x.sharding, _BITS[x.dtype.itemsize]
  split = {axis for part in sharding.spec for axis in ((part,) if isinstance(part, str) else part or ())}
  rest = tuple(axis for axis in sharding.mesh.axis_names if axis not in split)
  copies = math.prod(sharding.mesh.shape[axis] for axis in rest)
  nothing = np.zeros((1, *sharding.shard_shape(x.shape)), bits)
  blocks = [
    jax.device_put(nothing if own is None else own[_start(index)].view(bits)[None], device)
    for device, index in sharding.addressable_devices_indices_map(x.shape).items()
  ]
  spread = NamedSharding(sharding.mesh, PartitionSpec(rest, *sharding.spec))
  stacked = jax.make_array_from_single_device_arrays((copies, *x.shape), spread, blocks)
  return jax.block_until_ready(_greatest(jnp.dtype(x.dtype), sharding)(stacked))  # one at a time, see `tensors.examine`


@functools.lru_cache(maxsize=64)
def _greatest(dtype: jnp.dtype, sharding: NamedSharding) -> Callable:
  def greatest(bits):
    whole = bits.astype(jnp.uint32).max(0).astype(bits.dtype)
    return whole.astype(dtype) if dtype == jnp.bool_ else jax.lax.bitcast_convert_type(whole, dtype)

  return jax.jit(greatest, out_shardings=sharding)


def _covered(x: jax.ShapeDtypeStruct, held_P: np.ndarray) -> bool:
  """Return whether the processes that hold their shards hold all of a tensor together."""
  return _covering(x.sharding, x.shape, held_P.tobytes())


@functools.lru_cache(maxsize=256)
def _covering(sharding: NamedSharding, shape: tuple[int, ...], held: bytes) -> bool:
  where = {device: _start(index) for device, index in sharding.devices_indices_map(shape).items()}
  return set(where.values()) == {start for device, start in where.items() if held[device.process_index]}


def _from_all(x: np.ndarray) -> np.ndarray:
  """Return the arrays [N] of all processes, in order: [P, N]."""
  return np.asarray(multihost_utils.process_allgather(x)).reshape(-1, x.size)


def _start(index: tuple[slice, ...]) -> Start:
  return tuple(part.start or 0 for part in index)


def _taken(own: Mapping[Start, np.ndarray]) -> Callable:
  return lambda index: own[_start(index)]
