"""Checkpoints: asynchronous, exact and verified.

`orbax_steps` writes them to a local directory, `object_steps` to an object store. This file adds a
manifest with the shape, type and fingerprint of every tensor, verifies it when a step is read,
falls back with a warning to the newest intact step, and gives errors their classes. See
docs/reference/checkpoints.md.
"""

import atexit
import contextlib
import dataclasses
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from t5x_like.checkpoints import manifest as checkpoint_manifest
from t5x_like.checkpoints.manifest import DamagedStep, disk_errno, flatten, read_in_all_processes
from t5x_like.checkpoints.orbax_steps import LocalSteps, quiet_abandoned_tasks
from t5x_like.checkpoints.tensors import fingerprints, fingerprints_and_nonfinite
from t5x_like.errors import (
  DamageError,
  NumericError,
  TransientError,
  UserError,
  exit_code,
  is_transient,
  one_line,
)
from t5x_like.files.paths import as_path, is_remote
from t5x_like.parallel import distributed

_TIMEOUT_WORDS = ("DEADLINE_EXCEEDED", "timed out", "Timeout")
_SECOND_READ_DELAY_SECONDS = 0.5
_log = logging.getLogger("t5x_like.checkpoint")
StateTemplate = dict[str, Any] | Callable[[dict[str, dict]], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class _Retention:
  """The policy of removing steps: keep the newest, the last regular ones and the milestones.

  Multiples of the interval `every` are regular, and multiples of `keep_every` milestones. The
  newest step is kept; so is the step before it if the newest is no multiple of the interval.

  A step between multiples, saved on request or by the clock, displaces no multiple: how a run was
  interrupted must not decide which steps it can go back to. But while there are fewer than
  `keep_last` multiples, the newest other steps are kept instead: they may be the multiples of an
  interval that the run had before.
  """

  every: int
  keep_last: int | None
  keep_every: int | None

  def should_preserve(self, checkpoints: Sequence, *, context) -> list[bool]:
    return self.keeps([int(info.step) for info in checkpoints])

  def keeps(self, steps: list[int]) -> list[bool]:
    """Return for each step, given in order, whether it is kept."""
    regular = [step for step in steps if step % self.every == 0]
    newest = steps[-2:] if steps and steps[-1] % self.every else steps[-1:]
    keep_last = self.keep_last or len(steps)
    preserved = {*regular[-keep_last:], *newest}
    irregular = [step for step in steps if step not in preserved]
    num_missing = max(0, keep_last - len(preserved))
    preserved.update(irregular[len(irregular) - num_missing :])
    if self.keep_every:
      preserved.update(step for step in steps if step % self.keep_every == 0)
    return [step in preserved for step in steps]


class Checkpoints(contextlib.AbstractContextManager):
  """The checkpoints of one run, one directory per step.

  Args:
    directory: the directory of the steps, created by the first `save`: local (`orbax_steps`), or
      any URL that fsspec knows, such as `gs://…` (`object_steps`).
    every: the interval of saving.
    keep_last: how many of the newest multiples of `every` to keep, with the newest step, and the
      one before it where that is no multiple; None keeps all. While there are fewer, the newest
      other steps are kept instead.
    keep_every: steps that are multiples of this are kept permanently; None keeps none of them.
    save_timeout_seconds: how long one save may take, over all processes.
    check: called in process 0 before a step is committed, removed or set aside; raises if another
      run has taken the workdir.

  Attributes:
    restored_digest: the digest of the state in the step that was restored last, all its tensors
      included; see `manifest.digest_tensors`. None before.
  """

  def __init__(
    self,
    directory,
    *,
    every: int = 1,
    keep_last: int | None = 3,
    keep_every: int | None = None,
    save_timeout_seconds: int = 600,
    check: Callable[[], None] = lambda: None,
  ):
    for name, value in (("keep_last", keep_last), ("keep_every", keep_every)):
      if value is not None and value < 1:
        raise UserError(f"checkpoint.{name} is {value}; expected at least 1, or None")
    self._timeout = save_timeout_seconds
    self._saving: int | None = None  # the step that is being written
    step_store = LocalSteps
    if is_remote(directory):
      from t5x_like.checkpoints.object_steps import ObjectSteps

      step_store = ObjectSteps
    self._store = step_store(
      str(as_path(directory)), _Retention(every, keep_last, keep_every), save_timeout_seconds, check
    )
    self._directory = os.fspath(directory)
    self._damaged = []
    self._has_saved = False
    self.restored_digest: str | None = None

  def save(
    self,
    step: int,
    state: dict[str, Any],
    metadata: dict[str, Any],
    *,
    finite: bool = True,
    before: Callable[[], None] = lambda: None,
    announce: Callable[[str], None] = lambda state_digest: None,
  ) -> None:
    """Start saving a step; return once the tensors may be donated.

    `wait` returns once it is committed. All processes must call it with the same step. A step
    already saved with the same values is left as it is.

    Args:
      step: the number of optimizer steps taken.
      state: nested dicts with string keys; the leaves are arrays of any shape and any type but
        complex.
      metadata: anything `json` can write; returned by `restore`.
      finite: whether to refuse NaN and infinity.
      before: called before anything of the step is written, perhaps in another thread; its errors
        are the save's.
      announce: called with the digest of the state (`manifest.digest_tensors`), in this thread,
        before `before`.

    Raises:
      UserError: this or the previous save could not be written, or the step exists with other
        values.
      NumericError: naming a tensor that is not finite.
      TransientError: this or the previous save failed, and may succeed when tried again.
    """
    tensors = flatten(state)
    fingerprint_by_name, nonfinite_names = fingerprints_and_nonfinite(tensors)
    if finite and nonfinite_names:
      raise NumericError(
        f"step {step}: {nonfinite_names[0]} is not finite, and was not saved; steps saved: "
        f"{self.steps()}"
      )
    manifest = checkpoint_manifest.build_manifest(step, tensors, fingerprint_by_name, metadata)
    announce(checkpoint_manifest.digest_tensors(manifest["tensors"]))
    if not self._has_saved:
      self._has_saved = True
      _before_threads_end(self.close)
    self.wait()
    with self._disk_errors(step):
      damaged = self._damaged
      self._damaged = []
      self._move_aside(damaged, "damaged")
      if step in self._store.agreed_steps():
        self._check_same(step, fingerprint_by_name)
        before()
        return
      self._saving = step
      self._store.write(step, tensors, manifest, before)

  def steps(self) -> list[int]:
    """Return the committed steps, oldest first, as this process sees them.

    Only `restore` detects damage.
    """
    return self._store.steps()

  def is_committed(self, step: int) -> bool:
    """Return whether a step that this process began to save is committed, without waiting."""
    return self._store.is_committed(step)

  def restore(
    self, abstract_state: StateTemplate, step: int | None = None
  ) -> tuple[int, dict, dict] | None:
    """Read a step onto the given shardings and verify every tensor; all processes must call it.

    Process 0 lists the steps. A tensor counts as damaged only if a second reading agrees; an error
    of the network or the disk is retried, and never damage.

    Args:
      abstract_state: the tree to restore: `jax.ShapeDtypeStruct` leaves with `.sharding`, on any
        mesh of any number of processes; keys may be paths, see `manifest.flatten`. Only its
        top-level keys are read: `{"params": …}` does not read the optimizer's state. Or a function
        that chooses the tree, given the shape and type of every saved tensor by name.
      step: the step to restore, or None for the newest intact one. Damaged steps are skipped, each
        with a warning, and moved aside (`<step>.damaged`) by the next `save`.

    Returns:
      (step, state, metadata), or None if nothing was saved here.

    Raises:
      UserError: the requested step is missing, or its tensors differ from `abstract_state`.
      DamageError: the requested step, or every step, is damaged.
      TransientError: a step cannot be read now.
    """
    steps = self._store.agreed_steps()
    if step is None and not steps:
      return None
    if step is not None and step not in steps:
      raise UserError(
        f"{self._directory}: no checkpoint of step {step}; steps here: {steps or 'none'}"
      )
    damages: dict[int, str] = {}
    has_removed_steps = False
    candidates = steps[::-1] if step is None else [step]
    for candidate in candidates:
      try:
        state, metadata = self._restore_any_attempt(candidate, abstract_state)
      except DamagedStep as damage:
        # If it is gone, a run in the same workdir has removed it to save newer steps.
        if candidate not in self._store.agreed_steps():
          has_removed_steps = True
          continue
        damages[candidate] = str(damage)
        if step is None:
          where = self._store.where(candidate)
          _log.warning(
            "checkpoint step %d is damaged and is skipped: %s (%s)", candidate, damage, where
          )
        continue
      self._damaged += damages
      if damages:
        _log.warning("restored the newest intact checkpoint, step %d", candidate)
      return candidate, state, metadata
    if has_removed_steps:
      return self.restore(abstract_state, step)
    if step is not None:
      other_steps = [step_here for step_here in steps if step_here != step]
      raise DamageError(
        f"{self._store.where(step)}: damaged checkpoint: {damages[step]}; other "
        f"steps here: {other_steps}"
      )
    reasons = "; ".join(f"step {number}: {reason}" for number, reason in damages.items())
    raise DamageError(
      f"{self._directory}: every checkpoint is damaged ({reasons}); restore a copy of one, or "
      "start in a new workdir"
    )

  def set_aside(self, after: int, suffix: str) -> list[int]:
    """Rename the steps later than `after` to `<step>.<suffix>`, newest first.

    All processes must call it.
    """
    self.wait()
    later = [step for step in self._store.agreed_steps()[::-1] if step > after]
    self._move_aside(later, suffix)
    return later

  def wait(self) -> None:
    """Wait until the last save is committed.

    Raises:
      UserError, TransientError: it failed; the message names its step.
    """
    with self._disk_errors(self._saving):
      self._store.wait()
    self._saving = None

  def close(self) -> None:
    """Wait for the last save and end all threads; safe to call twice. Raise as `wait`."""
    with self._disk_errors(self._saving):
      self._store.close()
    self._saving = None

  def __exit__(self, *_) -> None:
    self.close()

  def _restore_any_attempt(self, step: int, abstract_state: StateTemplate) -> tuple[dict, dict]:
    """Read a step from the first of its attempts that is intact."""
    reasons = []
    while True:
      try:
        return self._restore_twice(step, abstract_state)
      except DamagedStep as damage:
        reasons.append(str(damage))
      if not self._store.skip_attempt(step):
        raise DamagedStep("; ".join(dict.fromkeys(reasons)))
      _log.warning(
        "checkpoint step %d: a damaged attempt to save it is skipped: %s", step, reasons[-1]
      )

  def _restore_twice(self, step: int, abstract_state: StateTemplate) -> tuple[dict, dict]:
    """Read and verify a step; report damage only if a second reading agrees."""
    try:
      return self._restore_once(step, abstract_state)
    except DamagedStep:
      time.sleep(_SECOND_READ_DELAY_SECONDS)
      return self._restore_once(step, abstract_state)

  def _restore_once(self, step: int, abstract_state: StateTemplate) -> tuple[dict, dict]:
    """Read and verify a step; every process gets the same verdict."""
    path = self._store.where(step)
    manifest = read_in_all_processes(path, lambda: self._manifest(step))
    saved = manifest["tensors"]
    if callable(abstract_state):
      abstract_state = abstract_state(saved)
    abstract_tensors = flatten(abstract_state)
    top_level_keys = {key.partition("/")[0] for key in abstract_state}
    saved_in_tree = {}
    for name, entry in saved.items():
      if name.partition("/")[0] in top_level_keys:
        saved_in_tree[name] = entry
    checkpoint_manifest.check_tensors(path, saved_in_tree, abstract_tensors)
    is_partial = len(abstract_tensors) < len(saved)
    tensors = read_in_all_processes(
      path, lambda: self._store.read(step, abstract_tensors, is_partial)
    )
    _check_fingerprints(tensors, saved)
    self.restored_digest = checkpoint_manifest.digest_tensors(saved)
    leaves = [tensors[name] for name in abstract_tensors]
    return jax.tree.unflatten(jax.tree.structure(abstract_state), leaves), manifest["metadata"]

  def _move_aside(self, steps: list[int], suffix: str) -> None:
    if steps:
      self._store.move_aside(steps, suffix)
      _log.warning("checkpoints of steps %s are set aside as %s", steps, suffix)

  def _manifest(self, step: int) -> dict[str, Any]:
    return checkpoint_manifest.read_manifest(lambda: self._store.manifest(step), step)

  def _check_same(self, step: int, fingerprint_by_name: dict[str, str]) -> None:
    """Check that a saved step has these fingerprints; raise UserError if it has others."""
    saved = None
    while saved is None:
      try:
        saved = self._manifest(step)["tensors"]
      except DamagedStep as damage:
        if not self._store.skip_attempt(step):
          raise UserError(
            f"{self._store.where(step)}: step exists and is damaged: {damage}; move it away"
          ) from None
    saved_by_name = {name: entry.get("fingerprint") for name, entry in saved.items()}
    for name in sorted({*saved_by_name, *fingerprint_by_name}):
      if saved_by_name.get(name) != fingerprint_by_name.get(name):
        raise UserError(
          f"{self._store.where(step)}: step exists with other values, for example of tensor "
          f"{name}; move it away or use a new workdir"
        )

  @contextlib.contextmanager
  def _disk_errors(self, step: int | None = None):
    """Turn an error of saving into its class, with a line that names the path.

    The error may come from a background thread.
    """
    where = self._directory if step is None else self._store.where(step)
    try:
      yield
    except Exception as error:
      if exit_code(error) is not None:
        raise
      number = disk_errno(error)
      quiet_abandoned_tasks()
      if number is not None:
        raise UserError(
          f"{where}: checkpoint could not be written: {os.strerror(number)}; free space or fix "
          f"the permissions and run the same command again (steps saved: {self.steps()})"
        ) from error
      if not is_remote(self._directory) and self._has_saved and not os.path.isdir(self._directory):
        raise UserError(
          f"{self._directory}: the directory of the checkpoints is gone; mount or restore it and "
          "run the same command again"
        ) from error
      if any(word in str(error) for word in _TIMEOUT_WORDS):
        raise TransientError(
          f"{where}: checkpoint was not written by all processes within {self._timeout} s (one of "
          f"them failed, or the disk is slow); steps saved: {self.steps()}"
        ) from error
      if is_transient(error):
        raise TransientError(
          f"{where}: checkpoint could not be written: {one_line(error)[:300]}; run the same "
          f"command again (steps saved: {self.steps()})"
        ) from error
      raise


def _check_fingerprints(tensors: dict[str, jax.Array], saved: dict[str, dict]) -> None:
  """Compare restored tensors with the fingerprints in the manifest; raise DamagedStep."""
  fingerprint_by_name = fingerprints(tensors)
  damaged = [name for name in tensors if fingerprint_by_name[name] != saved[name]["fingerprint"]]
  if not damaged:
    return
  name = damaged[0]
  more_tensors = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
  raise DamagedStep(
    f"tensor {name}{more_tensors} has fingerprint {fingerprint_by_name[name]}, saved was "
    f"{saved[name]['fingerprint']}"
  )


def _before_threads_end(close: Callable[[], None]) -> None:
  """Call `close` at the end of the program, while threads may still start others.

  `atexit` is too late: by then the thread pools that a save in flight needs are shut down. Python
  3.12.0 to 3.12.2 start no thread even here: a program that does not close its checkpoints may lose
  the save in flight there, and says so.
  """

  def finish():
    try:
      close()
    except Exception as error:
      print(f"error: {one_line(error)}", file=sys.stderr, flush=True)

  getattr(threading, "_register_atexit", atexit.register)(finish)


class SaveSchedule:
  """The schedule of the steps to save.

  Process 0 reads the clock, and the others wait for its answer. So that they seldom wait, the clock
  is read only when half of the remaining time, or a twentieth of `minutes`, should have passed,
  judged by the speed of the steps since the last save.

  Args:
    options: `config.checkpoint`; `every` counts steps, and `minutes` may be None.
    step: the step that the run starts from.
    clock: returns seconds from any point.
  """

  def __init__(self, options, step: int, clock: Callable[[], float] = time.monotonic):
    self._every = options.every
    self._minutes = options.minutes
    self._clock = clock
    self._start(step)

  def due(self, step: int) -> bool:
    """Return whether to save this step now.

    All processes must call it after every step, and get the same answer.
    """
    is_due = step % self._every == 0
    if not is_due and step >= self._next_clock_step:
      steps_ahead = distributed.broadcast_from_first(lambda: self._steps_to_next_clock(step))
      is_due = steps_ahead == 0
      self._next_clock_step = step + steps_ahead
    if is_due:
      self._start(step)
    return is_due

  def _start(self, step: int) -> None:
    self._last_step = step
    self._last_time = self._clock()
    self._next_clock_step = math.inf if self._minutes is None else step + 1

  def _steps_to_next_clock(self, step: int) -> int:
    """Return the number of steps until the clock is read again; 0 if a save is due."""
    spent = self._clock() - self._last_time
    remaining = 60 * self._minutes - spent
    steps_taken = max(1, step - self._last_step)
    if remaining <= 0:
      return 0
    steps = min(remaining / 2, 3 * self._minutes) * steps_taken / max(spent, 1e-3)
    # At most the steps timed so far: the first step has only been dispatched, not run.
    return max(1, min(steps_taken, int(steps)))
