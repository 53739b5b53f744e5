"""The steps that the processes of a job hold near them: each its own shards, which can reach others
over the mesh."""

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
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5x_like.checkpoints import manifest as checkpoint_manifest
from t5x_like.checkpoints.manifest import DamagedStep
from t5x_like.checkpoints.tensors import HostCopies
from t5x_like.errors import one_line
from t5x_like.files.local import LocalPath, check_below, check_owned
from t5x_like.runtime import process

_MANIFEST = "manifest.json"
_INDEX = "pieces.json"
_DATA = "pieces.bin"
_COPY = re.compile(r"([0-9]+)-[0-9]+(\.tmp)?")
_MOST = 4  # steps that a process may hold: two, and more for a moment after a start
# by the bytes of a type; the state has no 64-bit arrays
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}
_log = logging.getLogger("t5x_like.checkpoint")
Start = tuple[int, ...]  # of a shard along each axis of its tensor


class Starts(Protocol):
  """The starts of a run; see `emergency.StartHistory`."""

  known: list[list]
  current: str

  def belongs_to_run(self, start: str, step: int) -> bool: ...


class EmergencySteps:
  """The steps that the processes hold near them; `orbax_steps.LocalSteps` documents the methods.

  A copy is a directory `<start>/<step>-<process>/`, renamed into place once whole. It is not
  flushed to the disk: after a loss of power its checksums tell, and another slice has the step.

  Attributes:
    least: older steps do not count.
  """

  def __init__(self, directory: str, starts: Starts):
    self._directory = LocalPath(directory)
    self._starts = starts
    self.least = 0
    self._copies, self._pool = HostCopies(), concurrent.futures.ThreadPoolExecutor(1, "emergency")
    self._writing: concurrent.futures.Future | None = None
    # the last step written or read; the manifest that all go by
    self._last = 0
    self._agreed = b""

  def where(self, step: int) -> str:
    return f"{self._directory} (step {step})"

  def steps(self) -> list[int]:
    return sorted(
      {
        step
        for start, step, path in self._found()
        if path.suffix != ".tmp" and self._counts(start, step)
      }
    )

  def is_committed(self, step: int) -> bool:
    return step in self.steps()

  def agreed_steps(self) -> list[int]:
    """Return the steps that any process holds; as all meet here after `wait`, older copies are no
    longer needed."""
    mine = self.steps()[-_MOST:]
    held = _from_all(np.array(mine + [-1] * (_MOST - len(mine)), np.int32))
    return sorted({int(step) for step in held.ravel() if step >= self.least})

  def skip_attempt(self, step: int) -> bool:
    return False

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

    Hosts may have changed places: each then reads what it holds for the process that needs it, on a
    mesh of the devices in that order, from which the tensors move to their own mesh.

    Raises:
      Damaged: no process has an intact copy of some shard; the same in all processes.
    """
    needs = ShardNeeds(wanted)
    place, own = self._own(step, wanted, needs)
    places, held_P = needs.places(_from_all(np.array([place], np.int32)).ravel())
    lacking = next(
      (name for name, x in wanted.items() if not _covering(x.sharding, x.shape, held_P.tobytes())),
      None,
    )
    if lacking:
      raise DamagedStep(
        f"no process holds some shards of tensor {lacking} ({held_P.sum()} of "
        f"{held_P.size} hold theirs)"
      )
    others = "" if held_P.all() else "; the others receive their shards over the mesh"
    process.log(
      f"step {step}: {held_P.sum()} of {held_P.size} processes read their emergency copies{others}"
    )
    self._last = step
    found = {}
    for name, x in wanted.items():
      here = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=_rearranged(x.sharding, places))
      mine = own[name] if own and held_P[places[jax.process_index()]] else None
      if held_P.all():
        found[name] = jax.make_array_from_callback(x.shape, here.sharding, _taken(mine))
      else:
        found[name] = receive_from_replicas(here, mine)
      if here.sharding != x.sharding:
        found[name] = jax.block_until_ready(jax.device_put(found[name], x.sharding))
    return found

  def write(
    self,
    step: int,
    tensors: dict[str, jax.Array],
    manifest: dict[str, Any],
    before: Callable[[], None],
  ) -> None:
    self._remove_older(step)
    copies = self._copies(tensors)
    pieces = {}
    for name, x in (copies or tensors).items():
      for shard in x.addressable_shards:
        # Without copies, the tensor may be donated as soon as this returns.
        pieces[name, _start(shard.index)] = (
          shard.data if copies else np.array(shard.data, copy=True)
        )
    folder = self._directory / self._starts.current / f"{step}-{jax.process_index()}"
    self._writing = self._pool.submit(
      self._write, step, folder, pieces, json.dumps(manifest, sort_keys=True), before
    )

  def wait(self) -> None:
    writing = self._writing
    self._writing = None
    if writing is not None:
      writing.result()

  def close(self) -> None:
    try:
      self.wait()
    finally:
      self._pool.shutdown()

  def _write(
    self, step: int, folder: pathlib.Path, pieces: dict, manifest: str, before: Callable[[], None]
  ) -> None:
    before()
    aside = folder.with_name(f"{folder.name}.tmp")
    try:
      folder.parent.mkdir(mode=0o700, exist_ok=True)
      check_owned(folder.parent)
      shutil.rmtree(aside, ignore_errors=True)
      aside.mkdir(mode=0o700)
      index = []
      offset = 0
      with open(aside / _DATA, "wb") as file:
        for (name, start), piece in pieces.items():
          data = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
          file.write(data)
          index.append([name, start, offset, data.size, zlib.crc32(data)])
          offset += data.size
      (aside / _INDEX).write_text(json.dumps(index))
      (aside / _MANIFEST).write_text(manifest)
      aside.rename(folder)
      self._last = step
    except OSError as error:  # the run goes on: this is no checkpoint that it has promised
      shutil.rmtree(aside, ignore_errors=True)
      _log.warning(
        "%s: no emergency copy: %s; free space there", folder, error.strerror or one_line(error)
      )

  def _own(
    self, step: int, wanted: Mapping[str, Any], needs: "ShardNeeds"
  ) -> tuple[int, Mapping | None]:
    """Return the shards of this process by tensor and start, or else another's that it holds, with
    the first process that needs them; (-1, None), with a warning, if some are missing or
    damaged."""
    where = {}
    found = {}
    try:
      for folder, manifest in self._manifests(step).items():
        if manifest == self._agreed:
          index = json.loads((folder / _INDEX).read_bytes())
          where |= {(name, tuple(start)): (folder / _DATA, *rest) for name, start, *rest in index}
      if not where:
        return -1, None
      place = needs.first(where)
      for name, start in needs.of(place):
        shape = wanted[name].sharding.shard_shape(wanted[name].shape)
        dtype = wanted[name].dtype
        file, offset, size, check = where[name, start]
        if size != math.prod(shape) * dtype.itemsize:
          raise ValueError(f"tensor {name} has shards of another shape")
        data = np.fromfile(file, np.uint8, size, offset=offset)
        if zlib.crc32(data) != check:
          raise ValueError(f"tensor {name} differs from its checksum")
        found.setdefault(name, {})[start] = data.view(dtype).reshape(shape)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
      _log.warning(
        "%s: the copy of this host is not used: %s", self.where(step), one_line(error)[:200]
      )
      return -1, None
    return place, found

  def _manifests(self, step: int) -> dict[pathlib.Path, bytes]:
    """Return the copies of a step on this host whose manifests are intact, with these."""
    found = {}
    for start, one, path in self._found():
      if one == step and path.suffix != ".tmp" and self._counts(start, one):
        with contextlib.suppress(OSError, DamagedStep):
          check_below(path)
          text = (path / _MANIFEST).read_bytes()
          checkpoint_manifest.read_manifest(lambda: text, step)
          found[path] = text
    return found

  def _counts(self, start: str, step: int) -> bool:
    return step >= self.least and self._starts.belongs_to_run(start, step)

  def _found(self) -> Iterator[tuple[str, int, pathlib.Path]]:
    """Yield start, step and directory of the run's copies on this host, unfinished ones too.

    In a shared directory such as /dev/shm, another user may have made the directory of a start.
    """
    for start, *_ in self._starts.known:
      try:
        check_owned(self._directory / start)
      except OSError:
        continue
      for name in (self._directory / start).names():
        if match := _COPY.fullmatch(name):
          yield start, int(match[1]), self._directory / start / name

  def _remove_older(self, step: int) -> None:
    """Remove the copies that no start will read: all processes hold the last step, or another slice
    does."""
    for start, one, path in list(self._found()):
      unfinished = path.suffix == ".tmp" and one < step
      if unfinished or one < self._last or not self._starts.belongs_to_run(start, one):
        shutil.rmtree(path, ignore_errors=True)
        if start != self._starts.current:
          with contextlib.suppress(OSError):
            path.parent.rmdir()


class ShardNeeds:
  """The shards that each process of a job needs.

  Args:
    wanted: shape and sharding of each tensor, by name.
  """

  def __init__(self, wanted: Mapping[str, Any]):
    self._tensors = {name: _starts(x.sharding, x.shape) for name, x in wanted.items()}
    distinct = list({id(starts): starts for starts in self._tensors.values()}.values())
    groups: dict[tuple, int] = {}
    # The first process with the same needs, for each.
    self._like = [
      groups.setdefault(tuple(s[p] for s in distinct), p) for p in range(jax.process_count())
    ]

  def of(self, one: int) -> list[tuple[str, Start]]:
    """Return the shards of a process: names of tensors, and starts."""
    return [(name, start) for name, starts in self._tensors.items() for start in starts[one]]

  def first(self, held: Mapping[tuple[str, Start], Any]) -> int:
    """Return the first process whose needs are held, this one's before others'; raise KeyError if
    there is none."""
    for one in dict.fromkeys((self._like[jax.process_index()], *self._like)):
      if all(shard in held for shard in self.of(one)):
        return one
    raise KeyError("it has the shards of no process; the mesh has changed")

  def places(self, first_P: np.ndarray) -> tuple[tuple[int, ...], np.ndarray]:
    """Return the process whose shards each reads, a permutation, and which of these are read by one
    that holds them.

    Args:
      first_P: `first` of each process; -1 for none.
    """
    places = {p: p for p, first in enumerate(first_P) if first == self._like[p]}
    free = [p for p in range(len(first_P)) if p not in places]
    for p, first in enumerate(first_P):
      fitting = [place for place in free if self._like[place] == first]
      if p not in places and fitting:
        places[p] = fitting[0]
        free.remove(fitting[0])
    held_P = np.isin(np.arange(len(first_P)), list(places.values()))
    rest = [p for p in range(len(first_P)) if p not in places]
    places |= {p: p for p in rest if p in free}
    free = [p for p in free if p not in rest]
    places |= dict(zip([p for p in rest if p not in places], free, strict=True))
    return tuple(places[p] for p in range(len(first_P))), held_P


@functools.lru_cache(maxsize=256)
def _starts(sharding: NamedSharding, shape: tuple[int, ...]) -> dict[int, frozenset[Start]]:
  """Return where the shards of each process start."""
  found: dict[int, set] = {}
  for device, index in sharding.devices_indices_map(shape).items():
    found.setdefault(device.process_index, set()).add(_start(index))
  return {one: frozenset(starts) for one, starts in found.items()}


def _rearranged(sharding: NamedSharding, places: tuple[int, ...]) -> NamedSharding:
  """Return the sharding with the devices of each process in the places of another's."""
  if places == tuple(range(len(places))):
    return sharding
  return NamedSharding(
    _moved(sharding.mesh, places), sharding.spec, memory_kind=sharding.memory_kind
  )


@functools.lru_cache(maxsize=4)
def _moved(mesh: Mesh, places: tuple[int, ...]) -> Mesh:
  own: dict[int, list] = {}
  for device in sorted(mesh.devices.flat, key=lambda device: device.id):
    own.setdefault(device.process_index, []).append(device)
  moved = {
    old: new for p, place in enumerate(places) for old, new in zip(own[place], own[p], strict=True)
  }
  devices = np.vectorize(moved.get, otypes=[object])(mesh.devices)
  return Mesh(devices, mesh.axis_names, axis_types=mesh.axis_types)


def receive_from_replicas(
  x: jax.ShapeDtypeStruct, own: Mapping[Start, np.ndarray] | None
) -> jax.Array:
  """Return a tensor whose shards some of the devices hold: the others receive them over the axes
  that repeat it.

  Devices that hold no shard give zeros, and the bits of a tensor are the greatest of its replicas',
  so that nobody needs to know who holds what. All processes must call it.

  Args:
    x: shape, type and sharding, of a named mesh.
    own: the shards of this process's devices by their starts; None if it holds none.
  """
  sharding = x.sharding
  bits = _BITS[x.dtype.itemsize]
  split = {
    axis for part in sharding.spec for axis in ((part,) if isinstance(part, str) else part or ())
  }
  rest = tuple(axis for axis in sharding.mesh.axis_names if axis not in split)
  copies = math.prod(sharding.mesh.shape[axis] for axis in rest)
  nothing = np.zeros((1, *sharding.shard_shape(x.shape)), bits)
  blocks = [
    jax.device_put(nothing if own is None else own[_start(index)].view(bits)[None], device)
    for device, index in sharding.addressable_devices_indices_map(x.shape).items()
  ]
  spread = NamedSharding(sharding.mesh, PartitionSpec(rest, *sharding.spec))
  stacked = jax.make_array_from_single_device_arrays((copies, *x.shape), spread, blocks)
  # one at a time, see `tensors.fingerprints_and_nonfinite`
  return jax.block_until_ready(_greatest(jnp.dtype(x.dtype), sharding)(stacked))


@functools.lru_cache(maxsize=64)
def _greatest(dtype: jnp.dtype, sharding: NamedSharding) -> Callable:
  def greatest(bits):
    whole = bits.astype(jnp.uint32).max(0).astype(bits.dtype)
    return whole.astype(dtype) if dtype == jnp.bool_ else jax.lax.bitcast_convert_type(whole, dtype)

  return jax.jit(greatest, out_shardings=sharding)


def _covering(sharding: NamedSharding, shape: tuple[int, ...], held: bytes) -> bool:
  """Return whether the processes that hold their shards hold all of a tensor together."""
  starts = _starts(sharding, shape)
  return set().union(*starts.values()) == set().union(
    *(own for p, own in starts.items() if held[p])
  )


def _from_all(x: np.ndarray) -> np.ndarray:
  """Return the arrays [N] of all processes, in order: [P, N]."""
  return np.asarray(multihost_utils.process_allgather(x)).reshape(-1, x.size)


def _start(index: tuple[slice, ...]) -> Start:
  return tuple(part.start or 0 for part in index)


def _taken(own: Mapping[Start, np.ndarray]) -> Callable:
  return lambda index: own[_start(index)]
