"""Steps near the processes: each holds its own shards, and others receive them over the mesh."""

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
from t5x_like.files.local import LocalPath, check_below, check_owner
from t5x_like.runtime import process

_MANIFEST = "manifest.json"
_INDEX_FILE = "pieces.json"
_DATA_FILE = "pieces.bin"
_COPY = re.compile(r"([0-9]+)-[0-9]+(\.tmp)?")
# Of one process: two, and a few more just after a start, until older copies are removed.
_MAX_STEPS = 4
# The unsigned type by the bytes of a value; the state has no 64-bit arrays.
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}
_log = logging.getLogger("t5x_like.checkpoint")
ShardStart = tuple[int, ...]  # the first index of a shard along each axis of its tensor


class Starts(Protocol):
  """The starts of a run; see `emergency.StartHistory`."""

  ids: list[str]
  current_id: str

  def belongs_to_run(self, start_id: str, step: int) -> bool: ...


class EmergencySteps:
  """The steps in the processes' own directories; `orbax_steps.LocalSteps` documents the methods.

  A copy is a directory `<id of the start>/<step>-<process>/`, renamed into place once complete. It
  is not flushed to the disk: after a loss of power its checksums fail, and another slice has the
  step.

  Attributes:
    min_step: copies of older steps are ignored.
  """

  def __init__(self, directory: str, starts: Starts):
    self._directory = LocalPath(directory)
    self._starts = starts
    self.min_step = 0
    self._copies = HostCopies()
    self._pool = concurrent.futures.ThreadPoolExecutor(1, "emergency")
    self._writing: concurrent.futures.Future | None = None
    self._last_step = 0  # the last step written or read
    self._agreed_manifest = b""

  def where(self, step: int) -> str:
    return f"{self._directory} (step {step})"

  def steps(self) -> list[int]:
    steps = set()
    for start_id, step, path in self._own_copies():
      if path.suffix != ".tmp" and self._is_relevant(start_id, step):
        steps.add(step)
    return sorted(steps)

  def is_committed(self, step: int) -> bool:
    return step in self.steps()

  def agreed_steps(self) -> list[int]:
    """Return the steps that any process holds."""
    own_steps = self.steps()[-_MAX_STEPS:]
    padded = own_steps + [-1] * (_MAX_STEPS - len(own_steps))
    steps_PN = _gather_from_all(np.array(padded, np.int32))
    return sorted({int(step) for step in steps_PN.ravel() if step >= self.min_step})

  def skip_attempt(self, step: int) -> bool:
    return False

  def manifest(self, step: int) -> str:
    """Return the manifest of the first process that holds the step."""
    own_manifest = next(iter(self._manifests(step).values()), b"")
    sizes_P = _gather_from_all(np.array([len(own_manifest)], np.int32)).ravel()
    if not sizes_P.any():
      raise FileNotFoundError(f"{self.where(step)}: no process holds it")
    source = int(np.flatnonzero(sizes_P)[0])
    is_source = jax.process_index() == source
    content = np.zeros(sizes_P[source], np.uint8)
    if is_source:
      content[:] = np.frombuffer(own_manifest, np.uint8)
    received = multihost_utils.broadcast_one_to_all(content, is_source=is_source)
    self._agreed_manifest = np.asarray(received, np.uint8).tobytes()
    return self._agreed_manifest.decode()

  def read(self, step: int, template: dict[str, Any], partial: bool) -> dict[str, jax.Array]:
    """Return tensors by name, from local copies or, where one is missing, over the mesh.

    Hosts may have been renumbered: each then reads its copy for the process that needs it, on a
    mesh of the devices in that order, from which the tensors move to their own mesh.

    Raises:
      DamagedStep: no process has an intact copy of some shard; the same in all processes.
    """
    needs = ShardNeeds(template)
    complete_process, own_shards = self._read_own(step, template, needs)
    complete_P = _gather_from_all(np.array([complete_process], np.int32)).ravel()
    assignment, is_read_P = needs.assign(complete_P)
    for name, x in template.items():
      if not _is_covered(x.sharding, x.shape, is_read_P.tobytes()):
        raise DamagedStep(
          f"no process holds some shards of tensor {name} ({is_read_P.sum()} of "
          f"{is_read_P.size} hold theirs)"
        )
    suffix = "" if is_read_P.all() else "; the others receive their shards over the mesh"
    process.log(
      f"step {step}: {is_read_P.sum()} of {is_read_P.size} processes read their emergency copies"
      f"{suffix}"
    )
    self._last_step = step
    reads_here = own_shards and is_read_P[assignment[jax.process_index()]]
    tensors = {}
    for name, x in template.items():
      sharding = _rearrange_sharding(x.sharding, assignment)
      shards = own_shards[name] if reads_here else None
      if is_read_P.all():
        tensor = jax.make_array_from_callback(x.shape, sharding, _shard_callback(shards))
      else:
        tensor = receive_from_replicas(
          jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shards
        )
      if sharding != x.sharding:
        tensor = jax.block_until_ready(jax.device_put(tensor, x.sharding))
      tensors[name] = tensor
    return tensors

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
        pieces[name, _shard_start(shard.index)] = (
          shard.data if copies else np.array(shard.data, copy=True)
        )
    folder = self._directory / self._starts.current_id / f"{step}-{jax.process_index()}"
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
      check_owner(folder.parent)
      shutil.rmtree(aside, ignore_errors=True)
      aside.mkdir(mode=0o700)
      index = []
      offset = 0
      with open(aside / _DATA_FILE, "wb") as file:
        for (name, start), piece in pieces.items():
          data = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
          file.write(data)
          index.append([name, start, offset, data.size, zlib.crc32(data)])
          offset += data.size
      (aside / _INDEX_FILE).write_text(json.dumps(index))
      (aside / _MANIFEST).write_text(manifest)
      aside.rename(folder)
      self._last_step = step
    except OSError as error:  # the run continues: an emergency copy is optional
      shutil.rmtree(aside, ignore_errors=True)
      _log.warning(
        "%s: no emergency copy: %s; free space there", folder, error.strerror or one_line(error)
      )

  def _read_own(
    self, step: int, template: Mapping[str, Any], needs: "ShardNeeds"
  ) -> tuple[int, Mapping | None]:
    """Read the shards of a process from the copies of this host.

    Returns:
      (the process that needs the shards, the shards by tensor and start). The process is this one
      if the host has all of its shards, else the first one for which it has all. (-1, None), with
      a warning, if some are missing or damaged.
    """
    locations = {}
    shards = {}
    try:
      for folder, manifest in self._manifests(step).items():
        if manifest == self._agreed_manifest:
          for name, start, *location in json.loads((folder / _INDEX_FILE).read_bytes()):
            locations[name, tuple(start)] = (folder / _DATA_FILE, *location)
      if not locations:
        return -1, None
      complete_process = needs.first_complete(locations)
      for name, start in needs.shards_of(complete_process):
        shape = template[name].sharding.shard_shape(template[name].shape)
        dtype = template[name].dtype
        file, offset, size, checksum = locations[name, start]
        if size != math.prod(shape) * dtype.itemsize:
          raise ValueError(f"tensor {name} has shards of another shape")
        data = np.fromfile(file, np.uint8, size, offset=offset)
        if zlib.crc32(data) != checksum:
          raise ValueError(f"tensor {name} differs from its checksum")
        shards.setdefault(name, {})[start] = data.view(dtype).reshape(shape)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
      _log.warning(
        "%s: the copy of this host is not used: %s", self.where(step), one_line(error)[:200]
      )
      return -1, None
    return complete_process, shards

  def _manifests(self, step: int) -> dict[pathlib.Path, bytes]:
    """Return the manifests of the intact copies of a step on this host, by directory."""
    manifests = {}
    for start_id, copy_step, path in self._own_copies():
      if copy_step != step or path.suffix == ".tmp" or not self._is_relevant(start_id, copy_step):
        continue
      with contextlib.suppress(OSError, DamagedStep):
        check_below(path)
        text = (path / _MANIFEST).read_bytes()
        checkpoint_manifest.read_manifest(lambda text=text: text, step)
        manifests[path] = text
    return manifests

  def _is_relevant(self, start_id: str, step: int) -> bool:
    return step >= self.min_step and self._starts.belongs_to_run(start_id, step)

  def _own_copies(self) -> Iterator[tuple[str, int, pathlib.Path]]:
    """Yield the start's id, step and directory of the run's copies on this host.

    Unfinished copies are included. In a shared directory such as /dev/shm, another user may have
    created the directory of a start, which is then ignored.
    """
    for start_id in self._starts.ids:
      folder = self._directory / start_id
      try:
        check_owner(folder)
      except OSError:
        continue
      for name in folder.names():
        if match := _COPY.fullmatch(name):
          yield start_id, int(match[1]), folder / name

  def _remove_older(self, step: int) -> None:
    """Remove the copies that no start will read.

    All processes hold the last step, or another slice does.
    """
    for start_id, copy_step, path in list(self._own_copies()):
      is_unfinished = path.suffix == ".tmp" and copy_step < step
      is_older = copy_step < self._last_step
      if is_unfinished or is_older or not self._starts.belongs_to_run(start_id, copy_step):
        shutil.rmtree(path, ignore_errors=True)
        if start_id != self._starts.current_id:
          with contextlib.suppress(OSError):
            path.parent.rmdir()


class ShardNeeds:
  """The shards that each process of a job needs.

  Args:
    template: shape and sharding of each tensor, by name.
  """

  def __init__(self, template: Mapping[str, Any]):
    self._tensors = {name: _shard_starts(x.sharding, x.shape) for name, x in template.items()}
    distinct = list({id(starts): starts for starts in self._tensors.values()}.values())
    groups: dict[tuple, int] = {}
    # For each process, the first one with the same needs.
    self._representatives = []
    for number in range(jax.process_count()):
      needs = tuple(starts[number] for starts in distinct)
      self._representatives.append(groups.setdefault(needs, number))

  def shards_of(self, number: int) -> list[tuple[str, ShardStart]]:
    """Return the shards that a process needs: names of tensors, and starts."""
    return [(name, start) for name, starts in self._tensors.items() for start in starts[number]]

  def first_complete(self, available: Mapping[tuple[str, ShardStart], Any]) -> int:
    """Return a process whose shards are all available: this one if possible, else the first.

    Raises:
      KeyError: there is none.
    """
    own_needs = self._representatives[jax.process_index()]
    for number in dict.fromkeys((own_needs, *self._representatives)):
      if all(shard in available for shard in self.shards_of(number)):
        return number
    raise KeyError("it holds all shards of no process; the mesh has changed")

  def assign(self, complete_P: np.ndarray) -> tuple[tuple[int, ...], np.ndarray]:
    """Assign to every process the process whose shards it reads.

    Args:
      complete_P: `first_complete` of each process; -1 for none.
    Returns:
      (a permutation of the processes, whether some process reads each one's shards).
    """
    processes = range(len(complete_P))
    targets = {p: p for p in processes if complete_P[p] == self._representatives[p]}
    free = [p for p in processes if p not in targets]
    for p, complete_process in enumerate(complete_P):
      if p in targets:
        continue
      fitting = [target for target in free if self._representatives[target] == complete_process]
      if fitting:
        targets[p] = fitting[0]
        free.remove(fitting[0])
    is_read_P = np.isin(np.arange(len(complete_P)), list(targets.values()))
    unassigned = [p for p in processes if p not in targets]
    for p in unassigned:
      if p in free:  # assign it to itself where possible
        targets[p] = p
        free.remove(p)
    unassigned = [p for p in unassigned if p not in targets]
    targets |= dict(zip(unassigned, free, strict=True))
    return tuple(targets[p] for p in processes), is_read_P


@functools.lru_cache(maxsize=256)
def _shard_starts(
  sharding: NamedSharding, shape: tuple[int, ...]
) -> dict[int, frozenset[ShardStart]]:
  """Return the starts of the shards of each process."""
  starts: dict[int, set] = {}
  for device, index in sharding.devices_indices_map(shape).items():
    starts.setdefault(device.process_index, set()).add(_shard_start(index))
  return {number: frozenset(process_starts) for number, process_starts in starts.items()}


def _rearrange_sharding(sharding: NamedSharding, targets: tuple[int, ...]) -> NamedSharding:
  """Return the sharding on a mesh whose devices are rearranged by `_rearrange_mesh`."""
  if targets == tuple(range(len(targets))):
    return sharding
  return NamedSharding(
    _rearrange_mesh(sharding.mesh, targets), sharding.spec, memory_kind=sharding.memory_kind
  )


@functools.lru_cache(maxsize=4)
def _rearrange_mesh(mesh: Mesh, targets: tuple[int, ...]) -> Mesh:
  """Return the mesh with the devices of process `n` in the places of process `targets[n]`."""
  devices_by_process: dict[int, list] = {}
  for device in sorted(mesh.devices.flat, key=lambda device: device.id):
    devices_by_process.setdefault(device.process_index, []).append(device)
  replacements = {}
  for number, target in enumerate(targets):
    pairs = zip(devices_by_process[target], devices_by_process[number], strict=True)
    replacements.update(pairs)
  devices = np.vectorize(replacements.get, otypes=[object])(mesh.devices)
  return Mesh(devices, mesh.axis_names, axis_types=mesh.axis_types)


def receive_from_replicas(
  x: jax.ShapeDtypeStruct, own_shards: Mapping[ShardStart, np.ndarray] | None
) -> jax.Array:
  """Return a tensor of which some devices hold shards; the others receive theirs from these.

  The shards travel over the mesh axes that repeat the tensor. Devices without a shard contribute
  zeros, and each value is the maximum over its replicas' bits, read as unsigned integers. So no
  process needs to know which device holds which shard. All processes must call it.

  Args:
    x: shape, type and sharding, of a named mesh.
    own_shards: the shards of this process's devices by their starts; None if it holds none.
  """
  sharding = x.sharding
  bits = _BITS[x.dtype.itemsize]
  split_axes = set()
  for part in sharding.spec:
    split_axes.update((part,) if isinstance(part, str) else part or ())
  replica_axes = tuple(axis for axis in sharding.mesh.axis_names if axis not in split_axes)
  copies = math.prod(sharding.mesh.shape[axis] for axis in replica_axes)
  zeros = np.zeros((1, *sharding.shard_shape(x.shape)), bits)
  blocks = []
  for device, index in sharding.addressable_devices_indices_map(x.shape).items():
    block = zeros
    if own_shards is not None:
      block = own_shards[_shard_start(index)].view(bits)[None]
    blocks.append(jax.device_put(block, device))
  spread = NamedSharding(sharding.mesh, PartitionSpec(replica_axes, *sharding.spec))
  stacked = jax.make_array_from_single_device_arrays((copies, *x.shape), spread, blocks)
  # One tensor at a time; `tensors.fingerprints_and_nonfinite` gives the reason.
  return jax.block_until_ready(_select_greatest(jnp.dtype(x.dtype), sharding)(stacked))


@functools.lru_cache(maxsize=64)
def _select_greatest(dtype: jnp.dtype, sharding: NamedSharding) -> Callable:
  def greatest(bits):
    greatest_bits = bits.astype(jnp.uint32).max(0).astype(bits.dtype)
    if dtype == jnp.bool_:
      return greatest_bits.astype(dtype)
    return jax.lax.bitcast_convert_type(greatest_bits, dtype)

  return jax.jit(greatest, out_shardings=sharding)


def _is_covered(sharding: NamedSharding, shape: tuple[int, ...], holders: bytes) -> bool:
  """Return whether the processes marked in `holders` together hold all of a tensor."""
  needed = set()
  covered = set()
  for number, starts in _shard_starts(sharding, shape).items():
    needed |= starts
    if holders[number]:
      covered |= starts
  return needed == covered


def _gather_from_all(x: np.ndarray) -> np.ndarray:
  """Return the arrays [N] of all processes, in order: [P, N]."""
  return np.asarray(multihost_utils.process_allgather(x)).reshape(-1, x.size)


def _shard_start(index: tuple[slice, ...]) -> ShardStart:
  return tuple(part.start or 0 for part in index)


def _shard_callback(shards: Mapping[ShardStart, np.ndarray]) -> Callable:
  return lambda index: shards[_shard_start(index)]
