"""Steps of a checkpoint on an object store, or at any URL that fsspec knows.

A step is a directory `<step>-<attempt>-<processes>/`. Every process writes its shards of the
tensors as an object (`tensors-<process>.bin`, further ones `tensors-<process>-<part>.bin`) with an
index next to them. When all have done so, process 0 writes `manifest.json`, which commits the step.

An attempt that was interrupted has no manifest. The next run that saves first marks it with an
object `aside`, so that a paused process that still writes its manifest commits nothing, and then
removes it. Nothing is renamed: a committed step too is set aside by an object `aside` in its
directory, and may then be saved again as another attempt. If a step has several attempts with a
manifest, any intact one is read.
"""

import concurrent.futures
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from t5x_like.checkpoints.manifest import DamagedStep
from t5x_like.checkpoints.tensors import HostCopies
from t5x_like.errors import TransientError
from t5x_like.files.paths import as_path
from t5x_like.parallel import distributed

_STEP = re.compile(r"([0-9]+)-[0-9a-f]{8}-([0-9]+)")
_MANIFEST = "manifest.json"
_ASIDE = "aside"
_ABANDONED = b"abandoned"  # the content of `aside` for an attempt that another run did not finish
_READERS = 16
_WRITERS = 4
# The largest object: stores limit the size of a request, and a failed request is repeated whole.
_PART_BYTES = 2**28


class ObjectSteps:
  """The steps in one directory of a store; `orbax_steps.LocalSteps` documents the methods.

  Listings of a store may be out of date. So process 0 lists the directories for all processes, and
  the objects in a directory are read by name.

  Args:
    url: the directory of the checkpoints.
    retention: chooses the steps to keep.
    timeout_seconds: how long a save may take, over all processes.
    check: called in process 0 before it commits or removes anything; raises if another run has
      taken the workdir.
  """

  def __init__(
    self, url: str, retention, timeout_seconds: float, check: Callable[[], None] = lambda: None
  ):
    self._root = as_path(url)
    self._retention = retention
    self._timeout = timeout_seconds
    self._check = check
    self._saving: threading.Thread | None = None
    self._deadline = 0.0  # for the present save, by `time.monotonic`
    self._failed: BaseException | None = None
    self._copies = HostCopies()
    self._agreed: dict[int, list[str]] = {}  # the directories of each step
    self._damaged: set[str] = set()  # directories that a reader has skipped
    # The attempts that earlier runs did not finish; None until they are listed.
    self._interrupted: list[str] | None = None
    self._written: int | None = None

  def where(self, step: int) -> str:
    return str(self._root / str(step))

  def steps(self) -> list[int]:
    return sorted(self._committed())

  def is_committed(self, step: int) -> bool:
    return self._written == step

  def agreed_steps(self) -> list[int]:
    self._agreed = dict(distributed.broadcast_from_first(lambda: list(self._committed().items())))
    return sorted(self._agreed)

  def skip_attempt(self, step: int) -> bool:
    directories = self._directories(step)
    self._damaged.add(directories[0])
    self._agreed[step] = self._intact_first(directories)
    return self._agreed[step][0] not in self._damaged

  def manifest(self, step: int) -> str:
    data = (self._root / self._directory(step) / _MANIFEST).read()
    if data is None:
      raise FileNotFoundError(f"{self.where(step)}: no {_MANIFEST}")
    return data.decode()

  def read(self, step: int, template: dict[str, Any], partial: bool) -> dict[str, jax.Array]:
    chunks = self._read_index(self._directory(step))

    def read_shards(name: str) -> dict[tuple, np.ndarray]:
      return self._read_shards(template[name], chunks.get(name, []))

    tensors = {}
    with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
      shards_of_tensors = pool.map(read_shards, template)
      for (name, x), shards in zip(template.items(), shards_of_tensors, strict=True):
        tensors[name] = jax.make_array_from_callback(
          x.shape, x.sharding, lambda index, shards=shards: shards[_key(index)]
        )
    return tensors

  def _read_index(self, directory: str) -> dict[str, list[tuple[str, dict]]]:
    """Return the chunks of each tensor with their files; raise DamagedStep if one is missing."""
    chunks: dict[str, list[tuple[str, dict]]] = {}
    num_writers = int(_STEP.fullmatch(directory)[2])
    for writer in range(num_writers):
      index = (self._root / directory / f"tensors-{writer:05d}.json").read()
      if index is None:
        raise DamagedStep(f"tensors-{writer:05d}.json is missing")
      for chunk in json.loads(index):
        file = f"{directory}/{_file(writer, chunk.get('part', 0))}"
        chunks.setdefault(chunk["name"], []).append((file, chunk))
    return chunks

  def write(
    self,
    step: int,
    tensors: dict[str, jax.Array],
    manifest: dict[str, Any],
    before: Callable[[], None],
  ) -> None:
    self.wait()
    attempt = distributed.broadcast_from_first(
      lambda: f"{step}-{uuid.uuid4().hex[:8]}-{jax.process_count()}"
    )
    index, parts = self._divide_into_parts(tensors)
    arguments = (attempt, index, parts, manifest, before)
    self._saving = threading.Thread(target=self._save, args=arguments, name="save", daemon=True)
    self._deadline = time.monotonic() + self._timeout
    self._saving.start()

  def _divide_into_parts(self, tensors: dict[str, jax.Array]) -> tuple[list[dict], list[list]]:
    """Divide this process's shards into parts of at most `_PART_BYTES`.

    Returns:
      (the index of the chunks, the chunks of each part).
    """
    copies = self._copies(tensors)
    index = []
    parts = [[]]
    offset = 0
    for name, x in (copies or tensors).items():
      for shard in x.addressable_shards:
        if shard.replica_id != 0:
          continue
        # Without copies, the tensor may be donated as soon as this returns.
        data = shard.data if copies else np.array(shard.data, copy=True)
        for first_row, rows in _blocks_of_rows(data):
          if offset and offset + rows.nbytes > _PART_BYTES:
            parts.append([])
            offset = 0
          start = [axis.start or 0 for axis in shard.index]
          if start:
            start[0] += first_row
          chunk = {"name": name, "start": start, "shape": list(rows.shape), "dtype": str(x.dtype)}
          chunk |= {"offset": offset, "bytes": rows.nbytes}
          if len(parts) > 1:
            chunk["part"] = len(parts) - 1
          index.append(chunk)
          parts[-1].append(rows)
          offset += rows.nbytes
    return index, parts

  def wait(self) -> None:
    saving = self._saving
    self._saving = None
    if saving is not None:
      saving.join(max(0.0, self._deadline - time.monotonic()))
      if saving.is_alive():  # a daemon thread, which ends with the process
        raise TransientError(
          f"{self._root}: checkpoint was not written within {self._timeout:g} s (the store is "
          "slow, or does not answer); run the same command again, or raise "
          "--config.checkpoint.save_timeout_seconds"
        )
    failed = self._failed
    self._failed = None
    if failed is not None:
      raise failed

  def close(self) -> None:
    self.wait()

  def move_aside(self, steps: list[int], suffix: str) -> None:
    if jax.process_index() == 0:
      for step in steps:
        self._check()
        for directory in self._directories(step):
          (self._root / directory / _ASIDE).write_text(suffix)
    distributed.broadcast_from_first(lambda: None)
    self._agreed = {step: names for step, names in self._agreed.items() if step not in steps}

  def _committed(self) -> dict[int, list[str]]:
    """Return the directories of every committed step, one for each attempt, damaged ones last."""
    directories: dict[int, list[str]] = {}
    for name in self._root.names():
      match = _STEP.fullmatch(name)
      if match and self._state(name) == "committed":
        directories.setdefault(int(match[1]), []).append(name)
    return {step: self._intact_first(names) for step, names in directories.items()}

  def _intact_first(self, directories: list[str]) -> list[str]:
    return sorted(directories, key=lambda name: (name in self._damaged, name))

  def _state(self, directory: str) -> str:
    if (self._root / directory / _ASIDE).is_file():
      return "aside"
    return "committed" if (self._root / directory / _MANIFEST).is_file() else "unfinished"

  def _directories(self, step: int) -> list[str]:
    directories = self._agreed.get(step) or self._committed().get(step)
    if directories is None:
      raise FileNotFoundError(f"{self.where(step)}: no such step")
    return directories

  def _directory(self, step: int) -> str:
    return self._directories(step)[0]

  def _read_shards(self, x, chunks: list[tuple[str, dict]]) -> dict[tuple, np.ndarray]:
    """Return this process's shards of a tensor, by index, from the chunks that overlap them."""
    indices = x.sharding.addressable_devices_indices_map(x.shape).values()
    chunk_arrays: dict[int, np.ndarray] = {}
    shards = {}
    for key, index in {_key(index): index for index in indices}.items():
      bounds = [axis.indices(size)[:2] for axis, size in zip(index, x.shape, strict=True)]
      shard = np.empty([stop - start for start, stop in bounds], x.dtype)
      filled = 0
      for number, (file, chunk) in enumerate(chunks):
        overlap = _overlap(bounds, chunk)
        if overlap is None:
          continue
        if number not in chunk_arrays:
          chunk_arrays[number] = self._read_chunk(file, chunk)
        from_chunk = _relative(overlap, chunk["start"])
        into_shard = _relative(overlap, [start for start, _ in bounds])
        shard[into_shard] = chunk_arrays[number][from_chunk]
        filled += shard[into_shard].size
      if filled != shard.size:
        raise DamagedStep(
          f"{shard.size - filled} of {shard.size} values of a shard are in no object"
        )
      shards[key] = shard
    return shards

  def _read_chunk(self, file: str, chunk: dict) -> np.ndarray:
    byte_range = slice(chunk["offset"], chunk["offset"] + chunk["bytes"])
    data = (self._root / file).read(byte_range) if chunk["bytes"] else b""
    if data is None:
      raise DamagedStep(f"{file} is missing, which has {chunk['name']}")
    return np.frombuffer(data, jax.numpy.dtype(chunk["dtype"])).reshape(chunk["shape"])

  def _save(
    self, attempt: str, index: list[dict], parts: list[list], manifest: dict[str, Any], before
  ) -> None:
    """Save, in a thread of every process; process 0 commits."""
    try:
      before()
      process = jax.process_index()
      if process == 0 and self._interrupted is None:
        names = [name for name in self._root.names() if _STEP.fullmatch(name)]
        # Listed before the check: if the workdir is still this run's afterwards, none of the
        # attempts belongs to a run that has taken it over.
        self._check()
        self._interrupted = names
      directory = self._root / attempt

      def write_part(part: int) -> None:
        data = b"".join(np.asarray(chunk).tobytes() for chunk in parts[part])
        parts[part] = []
        (directory / _file(process, part)).write_bytes(data)

      with concurrent.futures.ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(write_part, range(len(parts))))
      (directory / f"tensors-{process:05d}.json").write_text(json.dumps(index))
      self._announce(f"{attempt}/{process}")
      if process == 0:
        self._await(f"{attempt}/{writer}" for writer in range(jax.process_count()))
        self._commit(attempt, manifest)
        self._announce(f"{attempt}/committed")
      self._await([f"{attempt}/committed"])
    except BaseException as error:
      self._failed = error

  def _commit(self, attempt: str, manifest: dict[str, Any]) -> None:
    """Write the manifest of an attempt, and remove older steps."""
    self._check()
    file = self._root / attempt / _MANIFEST
    if not file.create(json.dumps(manifest).encode()):
      raise TransientError(f"{file}: another process has written it; run the same command again")
    self._check()  # again: a run that has taken over in between has set this attempt aside
    self._written = manifest["step"]
    self._remove_old_steps(attempt)

  def _announce(self, event: str) -> None:
    """Signal an event to the other processes."""
    store = distributed.key_value_store()
    if store is not None:
      store.key_value_set(f"t5x_like/saved/{event}", "done")

  def _await(self, events: Iterable[str]) -> None:
    """Wait for events of other processes."""
    store = distributed.key_value_store()
    if store is None:
      return
    for event in events:
      try:
        store.blocking_key_value_get(f"t5x_like/saved/{event}", int(self._timeout * 1000))
      except RuntimeError as error:
        raise TransientError(
          f"{self._root}: checkpoint was not written by all processes within {self._timeout:g} s "
          "(one of them failed, or the store is slow)"
        ) from error

  def _remove_old_steps(self, attempt: str) -> None:
    """Remove steps that are no longer kept and, once, unfinished attempts of earlier runs.

    The manifest of a step is removed first, so that a half-removed step is not committed.
    """
    directories = self._committed()
    directories.setdefault(int(attempt.partition("-")[0]), [attempt])  # the listing may lack it
    steps = sorted(directories)
    for step, is_kept in zip(steps, self._retention.keeps(steps), strict=True):
      if is_kept:
        continue
      for name in directories[step]:
        self._check()
        (self._root / name / _MANIFEST).unlink()
        (self._root / name).rmtree()
    interrupted = self._interrupted
    self._interrupted = []
    for name in interrupted:
      self._remove_interrupted(name)

  def _remove_interrupted(self, name: str) -> None:
    """Remove the objects of an unfinished attempt but its `aside`, which the next run removes.

    Until then, `aside` prevents a paused process of the attempt from committing it.
    """
    directory = self._root / name
    aside = (directory / _ASIDE).read()
    if aside == _ABANDONED:
      self._check()
      directory.rmtree()
    elif aside is None and not (directory / _MANIFEST).is_file():
      self._check()
      (directory / _ASIDE).write_bytes(_ABANDONED)
      for file in directory.sizes():
        if file != _ASIDE:
          (directory / file).unlink()


def _file(process: int, part: int) -> str:
  return f"tensors-{process:05d}-{part:05d}.bin" if part else f"tensors-{process:05d}.bin"


def _blocks_of_rows(x) -> Iterator[tuple[int, Any]]:
  """Yield (the number of its first row, rows) of each block of an array that fits a part."""
  if not x.ndim or x.nbytes <= _PART_BYTES:
    yield 0, x
    return
  rows = max(1, _PART_BYTES * len(x) // x.nbytes)
  for first_row in range(0, len(x), rows):
    yield first_row, x[first_row : first_row + rows]


def _overlap(bounds: list[tuple[int, int]], chunk: dict) -> list[tuple[int, int]] | None:
  """Return the overlap of a shard and a chunk along each axis; None if they have none."""
  overlap = []
  for (start, stop), first, size in zip(bounds, chunk["start"], chunk["shape"], strict=True):
    low = max(start, first)
    high = min(stop, first + size)
    if low >= high:
      return None
    overlap.append((low, high))
  return overlap


def _relative(ranges: list[tuple[int, int]], starts: list[int]) -> tuple[slice, ...]:
  """Return ranges of a tensor as slices of an array that begins at `starts`."""
  return tuple(slice(low - start, high - start) for (low, high), start in zip(ranges, starts))


def _key(index) -> tuple:
  return tuple((s.start, s.stop) for s in index)
