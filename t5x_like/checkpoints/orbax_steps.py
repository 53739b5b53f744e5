"""Write the steps of a checkpoint to a local directory by orbax (OCDBT, atomic renames)."""

import concurrent.futures
import contextlib
import functools
import logging
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging as absl_logging
from etils import epath
from jax.experimental import multihost_utils

from t5x_like.checkpoints.manifest import DamagedStep, flatten, nest
from t5x_like.checkpoints.tensors import HostCopies
from t5x_like.errors import one_line
from t5x_like.files import local
from t5x_like.files.local import sync
from t5x_like.parallel import distributed

_STATE = "state"
_MANIFEST = "manifest"
_MIN_SLICE_BYTES = 2**20


class _Manager(ocp.CheckpointManager):
  """Orbax's manager without preemption checks.

  Its checks would call the synchronisation point of `training.preemption` a second time, from
  another thread, with an older step number and on the primary process only.
  """

  def reached_preemption(self, step: int) -> bool:
    return False


@functools.cache
def _write_small_arrays_whole() -> None:
  """Have orbax write each small array from one device.

  By default, orbax slices an array for all devices, which compiles a program for each shape.
  """
  default_handler = ocp.type_handlers.get_type_handler(jax.Array)
  handler = ocp.type_handlers.ArrayHandler(
    array_metadata_store=default_handler._array_metadata_store,
    min_slice_bytes_for_replica_parallel=_MIN_SLICE_BYTES,
  )
  ocp.type_handlers.register_type_handler(jax.Array, handler, override=True)


class LocalSteps:
  """The steps in one directory.

  Orbax's own work in a save takes longer than many steps, so it happens in a thread, on copies. The
  processes then synchronise through the coordination service: a collective on the devices could
  run at the same time as one of the step, and block it.

  Args:
    directory: created by the first `write`.
    retention: an orbax preservation policy.
    timeout_seconds: how long a save may take, over all processes.
    check: called in process 0 before it commits a step or sets some aside; raises if another run
      has taken the workdir.
  """

  def __init__(
    self,
    directory: str,
    retention,
    timeout_seconds: float,
    check: Callable[[], None] = lambda: None,
  ):
    self._directory = epath.Path(os.path.abspath(directory))
    self._retention = retention
    self._timeout = timeout_seconds
    self._check = check
    self._manager: _Manager | None = None
    self._copies = HostCopies()
    self._pool = None
    self._saving: concurrent.futures.Future | None = None
    quiet_orbax()
    _write_small_arrays_whole()

  def where(self, step: int) -> str:
    """Return the path of a step, for messages."""
    return str(self._directory / str(step))

  def steps(self) -> list[int]:
    """Return the committed steps, oldest first, as this process sees them."""
    try:
      return sorted(ocp.utils.checkpoint_steps(self._directory))
    except (FileNotFoundError, NotADirectoryError):
      return []

  def is_committed(self, step: int) -> bool:
    """Return whether a step is committed."""
    return step in self.steps()

  def agreed_steps(self) -> list[int]:
    """Return the committed steps, as process 0 sees them; all processes must call it."""
    return distributed.broadcast_from_first(self.steps)

  def skip_attempt(self, step: int) -> bool:
    """Read a step from another attempt from now on; return False if none is left."""
    return False

  def manifest(self, step: int) -> str:
    """Return the manifest's text.

    Raises:
      OSError: there is none, it cannot be read, or a file of the step is a pipe or a device, whose
        reading may never end.
    """
    local.check_below(self._directory / str(step))
    return (self._directory / str(step) / _MANIFEST / "metadata").read_text()

  def read(self, step: int, template: dict[str, Any], partial: bool) -> dict[str, jax.Array]:
    """Return tensors by name, without barriers; see `read_tensors`."""
    return read_tensors(self._directory / str(step) / _STATE, template, partial=partial)

  def write(
    self,
    step: int,
    tensors: dict[str, jax.Array],
    manifest: dict[str, Any],
    before: Callable[[], None],
  ) -> None:
    """Start writing a step, and return when its tensors may be donated.

    It waits until the previous step is committed.

    Args:
      before: called before anything is written, perhaps in another thread.
    """
    manager = self._open()
    self.wait()
    copies = self._copies(tensors)
    items = {
      _STATE: ocp.args.PyTreeSave(nest(copies or tensors)),
      _MANIFEST: ocp.args.JsonSave(manifest),
    }

    def save():
      before()
      manager.save(step, args=ocp.args.Composite(**items), force=True)

    if copies is None:
      save()
    else:
      self._saving = self._pool.submit(save)

  def wait(self) -> None:
    """Wait until the last step is committed; raise its error."""
    saving = self._saving
    self._saving = None
    if saving is not None:
      saving.result()
    if self._manager is not None:
      self._manager.wait_until_finished()

  def close(self) -> None:
    """Wait for the last step and end all threads."""
    if self._manager is None:
      return
    try:
      self.wait()
    finally:
      manager = self._manager
      self._manager = None
      self._pool.shutdown()
      manager.close()

  def move_aside(self, steps: list[int], suffix: str) -> None:
    """Rename steps so that they no longer count as committed; all processes must call it."""
    if jax.process_index() == 0:
      self._check()
      for step in steps:
        path = pathlib.Path(self._directory) / str(step)
        target = path.with_name(f"{step}.{suffix}")
        copies = 0
        while target.exists():
          copies += 1
          target = path.with_name(f"{step}.{suffix}.{copies}")
        if path.exists():
          path.rename(target)
    if jax.process_count() > 1:
      multihost_utils.sync_global_devices("t5x_like.checkpoint.move_aside")
    if self._manager is not None:
      self._manager.reload()

  def _sync(self) -> None:
    """Flush all files of a step to the disk, just before the rename that commits it.

    Older steps are removed afterwards.
    """
    if jax.process_index() == 0:
      self._check()
      for folder in pathlib.Path(self._directory).glob("*.orbax-checkpoint-tmp*"):
        for path in [*folder.rglob("*"), folder]:
          with contextlib.suppress(FileNotFoundError):
            sync(path)

  def _open(self) -> _Manager:
    """Return orbax's manager, created by the first save, as only saves may change the directory."""
    if self._manager is None:
      count = jax.process_count()
      if count > 1:  # orbax does not create it for several processes
        distributed.broadcast_from_first(lambda: self._directory.mkdir(parents=True, exist_ok=True))
      options = ocp.CheckpointManagerOptions(
        create=count == 1,
        multiprocessing_options=ocp.options.MultiprocessingOptions(
          active_processes=set(range(count)) if count > 1 else None
        ),
        preservation_policy=self._retention,
        cleanup_tmp_directories=True,
        lightweight_initialize=True,
        # If directories were created asynchronously and one failed, threads would wait for it until
        # the timeout.
        async_options=ocp.options.AsyncOptions(
          timeout_secs=self._timeout,
          create_directories_asynchronously=False,
          post_finalization_callback=self._sync,
        ),
      )
      self._manager = _Manager(self._directory, options=options)
      self._pool = concurrent.futures.ThreadPoolExecutor(1, "save")
    return self._manager


def read_tensors(
  path: epath.Path, template: dict[str, Any], *, partial: bool
) -> dict[str, jax.Array]:
  """Read tensors through orbax's handler, which has no barriers: a failing process blocks no other.

  Args:
    partial: whether the checkpoint has other tensors too.
  Raises:
    DamagedStep: orbax's description of the tensors is damaged.
  """
  if not template:
    return {}
  restore_args = {
    name: ocp.ArrayRestoreArgs(
      sharding=x.sharding, global_shape=x.shape, dtype=x.dtype, strict=True
    )
    for name, x in template.items()
  }
  handler = ocp.PyTreeCheckpointHandler()
  try:
    args = ocp.args.PyTreeRestore(
      item=nest(template), restore_args=nest(restore_args), partial_restore=partial
    )
    tree = handler.restore(path, args=args)
  # Orbax does not validate the JSON of its tensors.
  except (AttributeError, IndexError, RecursionError) as error:
    raise DamagedStep(f"a tensor cannot be read: {one_line(error)[:300]}") from error
  finally:
    handler.close()
  tensors = flatten(tree)
  return {name: tensors[name] for name in template}


@functools.cache
def quiet_orbax() -> None:
  """Drop orbax's log lines and its event loop's output after a failed save, for this process."""
  orbax = f"{os.sep}orbax{os.sep}"
  absl_logging.get_absl_logger().addFilter(lambda record: orbax not in record.pathname)
  # Coroutines of a save that failed may be garbage-collected before the failure is noticed.
  logging.getLogger("asyncio").addFilter(lambda record: orbax not in record.getMessage())
  show = sys.unraisablehook

  def unraisablehook(raised):
    # Late writes of a failed save call back into a closed event loop, and tensorstore prints each
    # of them. When a step is damaged, only the first failed read is awaited, and the others end as
    # unraisable errors of orbax's coroutines.
    is_late = raised.exc_type is RuntimeError and str(raised.exc_value) == "Event loop is closed"
    is_orbax = orbax in getattr(getattr(raised.object, "cr_code", None), "co_filename", "")
    if not (is_late or is_orbax):
      show(raised)

  sys.unraisablehook = unraisablehook


def quiet_abandoned_tasks() -> None:
  """Drop asyncio's reports of a failed save's unfinished coroutines."""
  for name in ("asyncio", "concurrent.futures"):
    logging.getLogger(name).setLevel(logging.CRITICAL)
