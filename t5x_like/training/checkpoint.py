"""Checkpoints: asynchronous, exact and verified.

`orbax` writes them (OCDBT, committed by an atomic rename); this file adds a manifest with the shape, type and
fingerprint of every tensor, verifies it when a step is read, falls back with a warning to the newest intact step, and
turns disk errors into one line. See docs/reference/checkpoints.md.
"""

import atexit
import contextlib
import errno
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from t5x_like.errors import UserError, one_line
from t5x_like.training import checkpoint_manifest
from t5x_like.training.checkpoint_manifest import Damaged, flatten, nest
from t5x_like.training.fingerprint import fingerprints
from t5x_like.training.quiet_orbax import quiet_abandoned_tasks, quiet_orbax

_STATE = "state"
_DISK_ERRORS = (
  errno.ENOSPC,
  errno.EDQUOT,
  errno.EFBIG,
  errno.EROFS,
  errno.EACCES,
  errno.EPERM,
  errno.EIO,
  errno.ENOTDIR,
)
_REFUSALS = (errno.EACCES, errno.EPERM)
_TIMEOUT_WORDS = ("DEADLINE_EXCEEDED", "timed out", "Timeout")
_log = logging.getLogger("t5x_like.checkpoint")


class _Manager(ocp.CheckpointManager):
  """Orbax's manager without preemption checks.

  Its checks would call the synchronisation point of `training.preemption` a second time, from another thread, with an
  older step number and on the primary process only.
  """

  def reached_preemption(self, step: int) -> bool:
    return False


class Checkpoints:
  """The checkpoints of one run, one directory per step.

  Args:
    directory: of the steps; created by the first `save`. Local, or any path `etils.epath` knows (`gs://…`).
    keep_last: how many of the newest steps to keep; None keeps all.
    keep_every: steps that are multiples of this are kept permanently; None keeps none of them.
    save_timeout_seconds: how long one save may take, over all processes.
  """

  def __init__(
    self, directory, *, keep_last: int | None = 3, keep_every: int | None = None, save_timeout_seconds: int = 600
  ):
    for name, value in (("keep_last", keep_last), ("keep_every", keep_every)):
      if value is not None and value < 1:
        raise UserError(f"checkpoint.{name} is {value}; expected at least 1, or None")
    self._directory = epath.Path(os.fspath(directory))
    if "://" not in os.fspath(directory):
      self._directory = self._directory.absolute()
    self._keep_last, self._keep_every, self._timeout = keep_last, keep_every, save_timeout_seconds
    self._manager: _Manager | None = None
    self._damaged: dict[int, str] = {}
    quiet_orbax()

  def save(self, step: int, state: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Starts saving a step and returns once the tensors may be donated; `wait` returns when it is committed.

    All processes must call it with the same step. A step already saved with the same values is left as it is.

    Args:
      step: the number of optimizer steps taken.
      state: nested dicts with string keys; the leaves are arrays of any shape and any type but complex.
      metadata: anything `json` can write; returned by `metadata` and `restore`.

    Raises:
      UserError: this or the previous save could not be written, or the step exists with other values.
    """
    tensors = flatten(state)
    prints = fingerprints(tensors)
    manifest = checkpoint_manifest.build(step, tensors, prints, metadata)
    with self._disk_errors(step):
      manager = self._open()
      manager.wait_until_finished()
      if step in manager.all_steps():
        self._check_same(step, prints)
        return
      items = {_STATE: ocp.args.PyTreeSave(nest(tensors)), checkpoint_manifest.NAME: ocp.args.JsonSave(manifest)}
      manager.save(step, args=ocp.args.Composite(**items), force=True)

  def steps(self) -> list[int]:
    """The committed steps, oldest first; only `restore` detects damage."""
    try:
      return sorted(ocp.utils.checkpoint_steps(self._directory))
    except (FileNotFoundError, NotADirectoryError):
      return []

  def metadata(self, step: int) -> dict[str, Any]:
    """The metadata saved with a step.

    Raises:
      UserError: no such step, or its manifest is damaged.
    """
    self._check_exists(step)
    try:
      return checkpoint_manifest.read(self._directory / str(step), step)["metadata"]
    except Damaged as damage:
      raise UserError(f"{self._directory / str(step)}: damaged checkpoint: {damage}") from None

  def restore(self, abstract_state: dict[str, Any], step: int | None = None) -> tuple[int, dict, dict] | None:
    """Reads a step onto the given shardings and verifies every tensor.

    Args:
      abstract_state: the tree to restore: `jax.ShapeDtypeStruct` leaves with `.sharding`, on any mesh of any number of
        processes. Only its top-level keys are read: `{"params": …}` does not read the optimizer's state.
      step: which step, or None for the newest intact one. Damaged steps are skipped, each with a warning, and moved
        aside (`<step>.damaged`) by the next `save`.

    Returns:
      (step, state, metadata), or None if nothing was saved here.

    Raises:
      UserError: the requested step is missing or damaged, all steps are damaged, or the tensors of the checkpoint are
        not those of `abstract_state`.
    """
    if step is not None:
      self._check_exists(step)
      candidates = [step]
    else:
      candidates = self.steps()[::-1]
      if not candidates:
        return None
    reasons = {}
    for candidate in candidates:
      path = self._directory / str(candidate)
      try:
        state, metadata = self._restore_one(candidate, abstract_state)
      except Damaged as damage:
        reasons[candidate] = str(damage)
        if step is None:
          _log.warning("checkpoint step %d is damaged and is skipped: %s (%s)", candidate, damage, path)
        continue
      self._damaged.update(reasons)
      if reasons:
        _log.warning("restored the newest intact checkpoint, step %d", candidate)
      return candidate, state, metadata
    if step is not None:
      others = [s for s in self.steps() if s != step]
      raise UserError(f"{self._directory / str(step)}: damaged checkpoint: {reasons[step]}; other steps here: {others}")
    told = "; ".join(f"step {s}: {r}" for s, r in reasons.items())
    raise UserError(
      f"{self._directory}: every checkpoint is damaged ({told}); restore a copy of one, or start in a new workdir"
    )

  def wait(self) -> None:
    """Returns when the last save is committed.

    Raises:
      UserError: it could not be written.
    """
    if self._manager is not None:
      with self._disk_errors():
        self._manager.wait_until_finished()

  def close(self) -> None:
    """Waits for the last save and ends all threads; safe to call twice.

    Raises:
      UserError: the last save could not be written.
    """
    if self._manager is not None:
      manager, self._manager = self._manager, None
      with self._disk_errors(), contextlib.ExitStack() as stack:
        stack.callback(manager.close)
        manager.wait_until_finished()

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def _open(self) -> _Manager:
    """The orbax manager, made on first use, as only saving may change the directory."""
    if self._damaged:
      if jax.process_index() == 0:
        for step in self._damaged:
          _move_aside(self._directory / str(step))
      _barrier("t5x_like.checkpoint.move_aside")
      self._damaged = {}
      if self._manager is not None:
        self._manager.reload()
    if self._manager is None:
      _before_threads_end(self.close)
      policies = [ocp.checkpoint_managers.LatestN(self._keep_last)]
      if self._keep_every is not None:
        policies.append(ocp.checkpoint_managers.EveryNSteps(self._keep_every))
      options = ocp.CheckpointManagerOptions(
        preservation_policy=ocp.checkpoint_managers.AnyPreservationPolicy(policies),
        cleanup_tmp_directories=True,
        lightweight_initialize=True,
        # If directories were created asynchronously and one failed, threads would wait for it until the timeout.
        async_options=ocp.options.AsyncOptions(timeout_secs=self._timeout, create_directories_asynchronously=False),
      )
      self._manager = _Manager(self._directory, options=options)
    return self._manager

  def _restore_one(self, step: int, abstract_state: dict[str, Any]) -> tuple[dict, dict]:
    """Reads and verifies one step; every process gets the same verdict."""
    wanted = flatten(abstract_state)
    path = self._directory / str(step)
    manifest, tensors, reason = None, {}, ""
    try:
      manifest = checkpoint_manifest.read(path, step)
    except Damaged as damage:
      refused, reason = _disk_errno(damage) in _REFUSALS, str(damage)
    else:
      refused = False
    _agree(path, reason, refused)
    saved = {name: entry for name, entry in manifest["tensors"].items() if name.split("/")[0] in abstract_state}
    checkpoint_manifest.check_tensors(path, saved, wanted)
    try:
      tensors = _read_tensors(path / _STATE, wanted, partial=len(saved) < len(manifest["tensors"]))
    except Exception as error:  # the readers below orbax raise many types of error for a damaged file
      refused, reason = _disk_errno(error) in _REFUSALS, f"a tensor cannot be read: {one_line(error)[:300]}"
    _agree(path, reason, refused)
    found = fingerprints(tensors)
    wrong = [name for name in wanted if found[name] != manifest["tensors"][name]["fingerprint"]]
    if wrong:
      more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
      raise Damaged(
        f"tensor {wrong[0]}{more} has fingerprint {found[wrong[0]]}, saved was "
        f"{manifest['tensors'][wrong[0]]['fingerprint']}"
      )
    leaves = [tensors[name] for name in wanted]
    return jax.tree.unflatten(jax.tree.structure(abstract_state), leaves), manifest["metadata"]

  def _check_exists(self, step: int) -> None:
    steps = self.steps()
    if step not in steps:
      raise UserError(f"{self._directory}: no checkpoint of step {step}; steps here: {steps or 'none'}")

  def _check_same(self, step: int, prints: dict[str, str]) -> None:
    try:
      saved = checkpoint_manifest.read(self._directory / str(step), step)["tensors"]
    except Damaged as damage:
      raise UserError(f"{self._directory / str(step)}: step exists and is damaged: {damage}; move it away") from None
    differing = [n for n in sorted({*saved, *prints}) if saved.get(n, {}).get("fingerprint") != prints.get(n)]
    if differing:
      raise UserError(
        f"{self._directory / str(step)}: step exists with other values, for example of tensor {differing[0]}; "
        "move it away or use a new workdir"
      )

  @contextlib.contextmanager
  def _disk_errors(self, step: int | None = None):
    """Turns a disk error, here or in a background thread, into a UserError naming the path."""
    where = self._directory if step is None else self._directory / str(step)
    try:
      yield
    except UserError:
      raise
    except Exception as error:
      number = _disk_errno(error)
      quiet_abandoned_tasks()
      if number is not None:
        raise UserError(
          f"{where}: checkpoint could not be written: {os.strerror(number)}; free space or fix the permissions and "
          f"run the same command again (steps saved: {self.steps()})"
        ) from error
      if any(word in str(error) for word in _TIMEOUT_WORDS):
        raise UserError(
          f"{where}: checkpoint was not written by all processes within {self._timeout} s (one of them failed, or the "
          f"disk is slow); steps saved: {self.steps()}"
        ) from error
      raise


def _before_threads_end(close: Callable[[], None]) -> None:
  """Calls `close` at the end of the program, while threads may still start others.

  `atexit` is too late: by then the thread pools that a save in flight needs are shut down.
  """

  def finish():
    try:
      close()
    except Exception as error:
      print(f"error: {one_line(error)}", file=sys.stderr, flush=True)

  getattr(threading, "_register_atexit", atexit.register)(finish)


def _disk_errno(error: BaseException | None) -> int | None:
  """The errno of the first disk error in a chain of exceptions, recognised also by its text alone."""
  seen = set()
  while error is not None and id(error) not in seen:
    seen.add(id(error))
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
      return error.errno
    for number in _DISK_ERRORS:
      if os.strerror(number) in str(error):
        return number
    error = error.__cause__ or error.__context__
  return None


def _read_tensors(path: epath.Path, wanted: dict[str, Any], *, partial: bool) -> dict[str, jax.Array]:
  """Reads the tensors through orbax's handler, which has no barriers, so a failing process blocks no other."""
  if not wanted:
    return {}
  restore_args = {
    name: ocp.ArrayRestoreArgs(sharding=x.sharding, global_shape=x.shape, dtype=x.dtype, strict=True)
    for name, x in wanted.items()
  }
  handler = ocp.PyTreeCheckpointHandler()
  try:
    args = ocp.args.PyTreeRestore(item=nest(wanted), restore_args=nest(restore_args), partial_restore=partial)
    tree = handler.restore(path, args=args)
  finally:
    handler.close()
  tensors = flatten(tree)
  return {name: tensors[name] for name in wanted}


def _move_aside(path: epath.Path) -> None:
  target, copies = path.parent / f"{path.name}.damaged", 0
  while target.exists():
    copies += 1
    target = path.parent / f"{path.name}.damaged.{copies}"
  if path.exists():
    path.rename(target)
    _log.warning("damaged checkpoint moved aside to %s", target)


def _agree(path: epath.Path, reason: str, refused: bool) -> None:
  """Gives every process the same verdict: nothing, `Damaged`, or a UserError if reading was not permitted."""
  if jax.process_count() > 1:
    verdicts = multihost_utils.process_allgather(np.array([2 if refused else int(bool(reason))], np.int32)).ravel()
    refused = bool((verdicts == 2).any())
    if verdicts.any() and not reason:
      reason = f"process {np.flatnonzero(verdicts)[0]} could not read it"
  if refused:
    raise UserError(f"{path}: checkpoint cannot be read: {reason}; fix the permissions")
  if reason:
    raise Damaged(reason)


def _barrier(name: str) -> None:
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)
