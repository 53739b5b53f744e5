"""Steps of a checkpoint on an object store, or at any address that fsspec knows.

A step is a directory `<step>-<attempt>-<processes>/`. Every process writes its shards of the
tensors as an object (`tensors-<process>.bin`, further ones `tensors-<process>-<part>.bin`) with an
index beside them; when all have, process 0 writes `manifest.json`, and only then the step is there.
An attempt that was cut short has none and is removed by the next run that saves: first by an object
`aside`, so that a process that was paused and now writes its manifest commits nothing. Nothing is
renamed: a step too is set aside by an object `aside` in its directory, and may then be saved again
as another attempt. Where a step has several attempts with a manifest, any intact one serves.
"""

import concurrent.futures
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
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
# of an object, so that none is too large for a request, and a repeated one costs little
_PART_BYTES = 2**28


class ObjectSteps:
  """The steps in one directory of a store; `orbax_steps.LocalSteps` documents the methods.

  Listings may lag: they only say which directories to look into, and process 0 looks for all. The
  objects in a directory are asked for by name.

  Args:
    url: of the directory.
    kept: says which steps to keep.
    timeout_seconds: how long a save may take, over all processes.
    check: called in process 0 before it commits or removes anything; raises if another run has
      taken the workdir.
  """

  def __init__(
    self, url: str, kept, timeout_seconds: float, check: Callable[[], None] = lambda: None
  ):
    self._place = as_path(url)
    self._kept = kept
    self._timeout = timeout_seconds
    self._check = check
    self._saving: threading.Thread | None = None
    self._deadline = 0.0  # of the save under way
    self._failed: BaseException | None = None
    self._copies = HostCopies()
    self._agreed: dict[int, list[str]] = {}  # the directories of each step
    self._damaged: set[str] = set()  # directories that a reader has passed over
    # the attempts that earlier runs did not finish, once listed
    self._interrupted: list[str] | None = None
    self._written: int | None = None

  def where(self, step: int) -> str:
    return str(self._place / str(step))

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
    data = (self._place / self._directory(step) / _MANIFEST).read()
    if data is None:
      raise FileNotFoundError(f"{self.where(step)}: no {_MANIFEST}")
    return data.decode()

  def read(self, step: int, wanted: dict[str, Any], partial: bool) -> dict[str, jax.Array]:
    directory = self._directory(step)
    chunks: dict[str, list[tuple[str, dict]]] = {}
    for writer in range(int(_STEP.fullmatch(directory)[2])):
      index = (self._place / directory / f"tensors-{writer:05d}.json").read()
      if index is None:
        raise DamagedStep(f"tensors-{writer:05d}.json is missing")
      for chunk in json.loads(index):
        chunks.setdefault(chunk["name"], []).append(
          (f"{directory}/{_file(writer, chunk.get('part', 0))}", chunk)
        )
    with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
      parts = pool.map(lambda name: self._local_parts(wanted[name], chunks.get(name, [])), wanted)
      return {
        name: jax.make_array_from_callback(
          x.shape, x.sharding, lambda index, own=own: own[_key(index)]
        )
        for (name, x), own in zip(wanted.items(), parts, strict=True)
      }

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
    copies = self._copies(tensors)
    index = []
    parts = [[]]
    offset = 0
    for name, x in (copies or tensors).items():
      for shard in x.addressable_shards:
        if shard.replica_id == 0:
          # Without copies, the tensor may be donated as soon as this returns.
          whole = shard.data if copies else np.array(shard.data, copy=True)
          for first, data in _rows(whole):
            if offset and offset + data.nbytes > _PART_BYTES:
              parts = [*parts, []]
              offset = 0
            start = [s.start or 0 for s in shard.index]
            start[:1] = [n + first for n in start[:1]]
            where = {"offset": offset, "bytes": data.nbytes} | (
              {"part": len(parts) - 1} if len(parts) > 1 else {}
            )
            index.append(
              {"name": name, "start": start, "shape": list(data.shape), "dtype": str(x.dtype)}
              | where
            )
            parts[-1].append(data)
            offset += data.nbytes
    saving = (attempt, index, parts, manifest, before)
    self._saving = threading.Thread(target=self._save, args=saving, name="save", daemon=True)
    self._deadline = time.monotonic() + self._timeout
    self._saving.start()

  def wait(self) -> None:
    saving = self._saving
    self._saving = None
    if saving is not None:
      saving.join(max(0.0, self._deadline - time.monotonic()))
      if saving.is_alive():  # it dies with the process
        raise TransientError(
          f"{self._place}: checkpoint was not written within {self._timeout:g} s (the store is "
          "slow, or does not answer); run the same command again, or raise "
          "--config.checkpoint.save_timeout_seconds"
        )
    failed = self._failed
    self._failed = None
    if failed is not None:
      raise failed

  def close(self) -> None:
    self.wait()

  def move_aside(self, steps: list[int], word: str) -> None:
    if jax.process_index() == 0:
      for step in steps:
        self._check()
        for directory in self._directories(step):
          (self._place / directory / _ASIDE).write_text(word)
    distributed.broadcast_from_first(lambda: None)
    self._agreed = {step: names for step, names in self._agreed.items() if step not in steps}

  def _committed(self) -> dict[int, list[str]]:
    """Return the directories of every committed step, one for each attempt, those known to be
    damaged last."""
    directories: dict[int, list[str]] = {}
    for name in self._place.names():
      if (match := _STEP.fullmatch(name)) and self._state(name) == "committed":
        directories.setdefault(int(match[1]), []).append(name)
    return {step: self._intact_first(names) for step, names in directories.items()}

  def _intact_first(self, directories: list[str]) -> list[str]:
    return sorted(directories, key=lambda name: (name in self._damaged, name))

  def _state(self, directory: str) -> str:
    if (self._place / directory / _ASIDE).is_file():
      return "aside"
    return "committed" if (self._place / directory / _MANIFEST).is_file() else "begun"

  def _directories(self, step: int) -> list[str]:
    directories = self._agreed.get(step) or self._committed().get(step)
    if directories is None:
      raise FileNotFoundError(f"{self.where(step)}: no such step")
    return directories

  def _directory(self, step: int) -> str:
    return self._directories(step)[0]

  def _local_parts(self, x, chunks: list[tuple[str, dict]]) -> dict[tuple, np.ndarray]:
    """Return this process's shards of a tensor, by index, from the chunks that overlap them."""
    needed = {
      _key(index): index for index in x.sharding.addressable_devices_indices_map(x.shape).values()
    }
    read: dict[int, np.ndarray] = {}
    parts = {}
    for key, index in needed.items():
      bounds = [s.indices(size)[:2] for s, size in zip(index, x.shape, strict=True)]
      part = np.empty([stop - start for start, stop in bounds], x.dtype)
      filled = 0
      for number, (file, chunk) in enumerate(chunks):
        edges = [(a, a + n) for a, n in zip(chunk["start"], chunk["shape"], strict=True)]
        both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(bounds, edges, strict=True)]
        if any(low >= high for low, high in both):
          continue
        if number not in read:
          read[number] = self._chunk(file, chunk)
        there = tuple(slice(low - a, high - a) for (low, high), (a, _) in zip(both, edges))
        here = tuple(slice(low - a, high - a) for (low, high), (a, _) in zip(both, bounds))
        part[here] = read[number][there]
        filled += part[here].size
      if filled != part.size:
        raise DamagedStep(f"{part.size - filled} of {part.size} values of a shard are in no object")
      parts[key] = part
    return parts

  def _chunk(self, file: str, chunk: dict) -> np.ndarray:
    part = slice(chunk["offset"], chunk["offset"] + chunk["bytes"])
    data = (self._place / file).read(part) if chunk["bytes"] else b""
    if data is None:
      raise DamagedStep(f"{file} is missing, which has {chunk['name']}")
    return np.frombuffer(data, jax.numpy.dtype(chunk["dtype"])).reshape(chunk["shape"])

  def _save(
    self, attempt: str, index: list[dict], parts: list[list], manifest: dict[str, Any], before
  ) -> None:
    """Save, in a thread of every process; process 0 commits."""
    try:
      before()
      mine = jax.process_index()
      if mine == 0 and self._interrupted is None:
        names = [name for name in self._place.names() if _STEP.fullmatch(name)]
        # Listed before the check: as the workdir is still this run's, none of them belongs to a run
        # that took it over.
        self._check()
        self._interrupted = names
      there = self._place / attempt

      def put(part: int) -> None:
        data, parts[part] = parts[part], []
        (there / _file(mine, part)).write_bytes(b"".join(np.asarray(x).tobytes() for x in data))

      with concurrent.futures.ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(put, range(len(parts))))
      (there / f"tensors-{mine:05d}.json").write_text(json.dumps(index))
      self._meet(
        f"{attempt}/{mine}",
        [f"{attempt}/{other}" for other in range(jax.process_count())] if not mine else [],
      )
      if mine == 0:
        self._check()
        if not (there / _MANIFEST).create(json.dumps(manifest).encode()):
          raise TransientError(
            f"{there}/{_MANIFEST}: another process has written it; run the same command again"
          )
        self._check()  # again, as a run that took over in between has set this attempt aside
        self._written = manifest["step"]
        self._clean(attempt)
      self._meet(f"{attempt}/committed" if not mine else "", [f"{attempt}/committed"])
    except BaseException as error:
      self._failed = error

  def _meet(self, say: str, hear: list[str]) -> None:
    """Announce that something is done, and wait for all of `hear`."""
    store = distributed.key_value_store()
    if store is None:
      return
    if say:
      store.key_value_set(f"t5x_like/saved/{say}", "done")
    for name in hear:
      try:
        store.blocking_key_value_get(f"t5x_like/saved/{name}", int(self._timeout * 1000))
      except RuntimeError as error:
        raise TransientError(
          f"{self._place}: checkpoint was not written by all processes within {self._timeout:g} s "
          "(one of them failed, or the store is slow)"
        ) from error

  def _clean(self, attempt: str) -> None:
    """Remove steps that are no longer kept and, once, what earlier runs left unfinished; the
    manifest goes first."""
    steps = self._committed()
    steps.setdefault(int(attempt.partition("-")[0]), [attempt])  # whatever the listing says
    ordered = sorted(steps)
    for step, keep in zip(ordered, self._kept.of(ordered), strict=True):
      for name in [] if keep else steps[step]:
        self._check()
        (self._place / name / _MANIFEST).unlink()
        (self._place / name).rmtree()
    interrupted = self._interrupted
    self._interrupted = []
    for name in interrupted:
      self._remove_interrupted(name)

  def _remove_interrupted(self, name: str) -> None:
    """Remove the objects of an unfinished attempt, and what an earlier run has left of one.

    An `aside` stays until a later run, in case that the attempt's process was only paused, and
    commits it after all.
    """
    there = self._place / name
    aside = (there / _ASIDE).read()
    if aside == _ABANDONED:
      self._check()
      there.rmtree()
    elif aside is None and not (there / _MANIFEST).is_file():
      self._check()
      (there / _ASIDE).write_bytes(_ABANDONED)
      for file in there.sizes():
        if file != _ASIDE:
          (there / file).unlink()


def _file(process: int, part: int) -> str:
  return f"tensors-{process:05d}-{part:05d}.bin" if part else f"tensors-{process:05d}.bin"


def _rows(x) -> Iterator[tuple[int, Any]]:
  """Yield an array in runs of rows that fit a part, with the number of the first row of each."""
  rows = max(1, _PART_BYTES * len(x) // x.nbytes) if x.ndim and x.nbytes > _PART_BYTES else None
  yield from (
    ((0, x),)
    if rows is None
    else ((first, x[first : first + rows]) for first in range(0, len(x), rows))
  )


def _key(index) -> tuple:
  return tuple((s.start, s.stop) for s in index)
