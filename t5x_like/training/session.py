"""Hold a workdir for a run, with its metrics, checkpoints and history."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from t5x_like.certificate.recorder import Recorder
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import Preempted
from t5x_like.files import checked_json
from t5x_like.files.paths import check_writable, is_remote
from t5x_like.parallel import distributed
from t5x_like.report.writer import MetricsWriter, read_metrics, set_aside
from t5x_like.runtime import process
from t5x_like.runtime.watchdog import Watchdog
from t5x_like.saved_model.workdir import HISTORY_FILE, Rows, read_history, read_identity
from t5x_like.store.reader import check_unchanged
from t5x_like.training import workdir as workdirs
from t5x_like.training.build import Assembly
from t5x_like.training.meter import Goodput

# The folders of a workdir into which a run writes.
_FOLDERS = ("checkpoints", "logs", "pictures", "profile", "samples", "best")


@dataclasses.dataclass(frozen=True)
class PastRun:
  """The record of a run in its workdir, the same in all processes.

  Attributes:
    identity: the content of `config.json`; None for a new run.
    requested_step: the `--from_step` of the last start.
    start_time: the time of the first start, in seconds since the epoch.
    save_evidence: the evidence that a step was saved; None if there is none.
    intervals: the values of `log_every` so far, ascending.
  """

  identity: dict[str, Any] | None
  requested_step: int | None
  start_time: float
  save_evidence: str | None
  intervals: list[int]

  def expected_last_step(self, step: int) -> int:
    """Return a step up to `step` after which a line of metrics must exist; 0 if unknown."""
    if not self.intervals:
      return 0
    longest = max(self.intervals)
    if len(self.intervals) == 1:
      return step // longest * longest
    return max(0, step + 1 - 2 * longest)


class Session(contextlib.AbstractContextManager):
  """Lock a workdir and compare the run in it with this one; a context manager that releases it.

  The history is read after the workdir is locked: until then, another run may add to it.

  Args:
    address: a directory, created if missing, or an address that fsspec knows.
    assembly: the parts of the run.
    from_step: a saved step to return to, once: not again at later starts with the same `from_step`.
    flags: the flags that made the run's config, for the history.

  Attributes:
    address: the argument.
    identity: the content of `config.json` for this run.
    return_step: the step to return to; None continues from the newest one.
    workdir: the address itself if it is local, otherwise a local copy that is uploaded.
    past: the record of earlier starts.
    checkpoints: the checkpoints of the run.
    certificate: the recorder of the run's steps, once the run has begun.
    saved: the step saved last.
    callbacks: called with the step and the metrics of every line, in all processes.
    annotators: called likewise before a line is written; they return metrics to add to it.

  Raises:
    UserError: another run holds the workdir, it cannot be written, its run has another config, or
      the processes have different configs, data or code.
  """

  def __init__(
    self,
    address: str,
    assembly: Assembly,
    from_step: int | None = None,
    flags: Sequence[str] = (),
  ):
    config = assembly.config
    self.address = address
    self.identity = assembly.identity
    self.saved = 0
    self._recorded_save = False
    self._assembly = assembly
    self._config = config
    self._from_step = from_step
    self._flags = flags
    self._primary = process.is_first()
    self.callbacks: list[Callable[[int, dict[str, float]], object]] = []
    self.annotators: list[Callable[[int, dict[str, float]], dict[str, float]]] = []
    self._writer: MetricsWriter | None = None
    self.certificate: Recorder | None = None
    self._mirror = None
    if is_remote(address):
      from t5x_like.files.mirror import WorkdirMirror

      self._mirror = WorkdirMirror(address)
    self.workdir = self._mirror.local if self._mirror else pathlib.Path(address)
    watchdog = Watchdog(config.step_timeout_seconds, self.workdir / "logs", jax.process_index())
    with contextlib.ExitStack() as stack:
      if self._primary:
        self._lock = stack.enter_context(contextlib.closing(workdirs.lock_workdir(address)))
        if self._mirror:
          self._mirror.pull()
          self._mirror.pull_certificate()
      self.past = PastRun(*distributed.broadcast_from_first(self._read_past))
      self.return_step = None if from_step == self.past.requested_step else from_step
      self._changes = self.check_config(self.past.identity, address) if self.past.identity else []
      distributed.check_agreement(
        {
          "config": checked_json.digest(config.to_dict())[:16],
          "data and vocabulary": json.dumps(self.identity["fingerprints"]),
          "code version": distributed.code_version(),
          "workdir": address if is_remote(address) else os.path.abspath(address),
        }
        | {
          f"version of {package}": version
          for package, version in process.package_versions().items()
        }
      )
      if self._primary:
        check_writable("--workdir", self.workdir, _FOLDERS)
      self.beat = stack.enter_context(watchdog).beat
      for change in self._changes:
        process.log(f"resuming with a changed config: {change}")
      self.checkpoints = _open_checkpoints(f"{address}/checkpoints", config, self.check)
      self._stack = stack.pop_all()

  def _read_past(self) -> list:
    """Return the fields of `PastRun`, as JSON that the first process can send."""
    rows = read_history(self.workdir, self.address)
    identity = read_identity(self.workdir, self.address)
    configs = [identity, *(row.get("config") for row in rows)]
    intervals = {_positive_count(config, "log_every") for config in configs} - {None}
    return [
      identity,
      workdirs.last_from_step(rows),
      workdirs.first_start_time(rows),
      self._find_save_evidence(rows, identity),
      sorted(intervals),
    ]

  def _find_save_evidence(self, rows: Rows, identity: dict[str, Any] | None) -> str | None:
    """Return the evidence that a step was saved, from history, imported weights or metrics."""
    step = workdirs.find_saved_step(rows)
    if step is not None:
      return f"{HISTORY_FILE} says that step {step} was saved"
    if (self.workdir / workdirs.IMPORTED_FILE).exists():
      return f"{workdirs.IMPORTED_FILE} says that it holds imported weights"
    last_step = max((row["step"] for row in self.metrics()), default=0)
    every = _positive_count(identity and identity.get("checkpoint"), "every")
    if every and last_step > 2 * every:  # the second save waited until the first was committed
      return f"metrics.jsonl reaches step {last_step}, and a step was saved every {every}"
    return None

  def check_config(self, saved: dict[str, Any], where: str) -> list[str]:
    """Return the allowed changes since a saved identity; raise UserError for others."""
    fresh = self._config.checkpoint.fresh_optimizer
    return workdirs.check_identity(saved, self.identity, where, other_optimizer=fresh)

  def begin(
    self, step: int, loaded: dict[str, Any] | None, state_digest: str, batches_passed: int
  ) -> None:
    """Record a start in the workdir, and open the metrics and the certificate.

    Args:
      step: the step that the run continues from.
      loaded: the report on weights of another run, if any.
      state_digest: the digest of the state of that step; see `checkpoints.manifest.digest_tensors`.
      batches_passed: the number of batches that rollbacks have skipped before the step.
    """
    self.saved = step
    goes_back = self.return_step is not None
    environment = process.describe_environment() | self._assembly.cores
    if goes_back:
      self.checkpoints.set_aside(step, "set_aside")
    if self._primary:
      if loaded:
        workdirs.write_json(self.workdir, "init.json", loaded)
      if goes_back:
        set_aside(self.workdir)
      workdirs.write_identity(self.workdir, self.identity)
      workdirs.write_json(self.workdir, "environment.json", environment)
      workdirs.add_start(
        self.workdir,
        step,
        self.identity,
        self._changes,
        environment,
        self._from_step,
        self._flags,
      )
      self._assembly.task.vocabulary.save(self.workdir / "vocabulary")
      self._recorded_save = step > 0
    past_run = self.past
    if not past_run.intervals:  # the workdir has a checkpoint, but neither config nor history
      past_run = dataclasses.replace(past_run, intervals=[self._config.log_every])
    self._open_metrics(step, past_run.expected_last_step(step))
    self.certificate = Recorder(self.workdir, self.check)
    self.certificate.begin(step, state_digest, batches_passed, self.identity, environment)
    self.flush(is_starting=True)

  def go_back(
    self, step: int, state_digest: str, refused_step: int, reason: str, batches_passed: int
  ) -> None:
    """Set aside the checkpoints and metrics after a step, and record the rollback.

    Args:
      step, state_digest, batches_passed: see `begin`.
      refused_step: the step whose update the guard refused, for this reason.
    """
    self.saved = step
    self._writer.close("paused")
    self.checkpoints.set_aside(step, "rolled_back")
    if self._primary:
      rollback = {"rollback": reason, "from": refused_step, "step": step}
      workdirs.add_line(self.workdir, rollback | {"batches_passed": batches_passed})
    self.certificate.add_rollback(step, state_digest, refused_step, reason, batches_passed)
    self._open_metrics(step)

  def _open_metrics(self, step: int, expected_last_step: int = 0) -> None:
    name = self.address.rstrip("/").rpartition("/")[2]

    def open_trackers() -> list:
      trackers = self._assembly.trackers
      return [tracker.open(self.workdir, name, step, self.identity) for tracker in trackers]

    self._writer = MetricsWriter(
      self.workdir,
      resume_step=step,
      primary=self._primary,
      expected=expected_last_step,
      check=self.check,
      trackers=open_trackers,
    )
    if self._writer.missing:
      first, last = self._writer.missing
      process.log(
        f"{self.address}/metrics.jsonl: steps {first} to {last} have no metrics (the file was "
        "truncated or removed); the report leaves a gap there"
      )

  def metrics(self) -> list[dict[str, Any]]:
    """Return the lines of `metrics.jsonl` in this process's copy of the workdir."""
    return read_metrics(self.workdir)

  def goodput(self, step: int) -> Goodput:
    """Return the goodput of a run that continues from a step."""
    computing_seconds = []
    for row in self.metrics():
      seconds = row.get("train/seconds_per_step")
      if seconds:
        waited = row.get("train/data_wait_fraction", 0.0)
        computing_seconds.append(seconds * (1.0 - waited))
    mean_seconds = sum(computing_seconds) / max(1, len(computing_seconds))
    return Goodput(self.past.start_time, mean_seconds * step)

  def write_metrics(self, step: int, metrics: dict[str, float]) -> None:
    """Append a line to `metrics.jsonl`, and call the callbacks with it."""
    for annotate in self.annotators:
      metrics = metrics | annotate(step, metrics)
    self._writer.write(step, metrics)
    for callback in self.callbacks:
      callback(step, metrics)

  def write_samples(self, step: int, samples: list[dict[str, Any]]) -> None:
    """Write the samples of an evaluation, if there are any."""
    if samples and self._primary:
      workdirs.write_lines(self.workdir / "samples", f"{step:09d}.jsonl", samples)

  def save(self, step: int, tree: dict[str, Any], rollbacks: dict[str, int]) -> None:
    """Start a checkpoint, which is committed after all metrics written so far.

    Raises:
      DamageError: a file of the data has changed while it was read, and so the state may be of
        other data.
    """
    check_unchanged()
    self.saved = step
    metadata = self.identity | {"rollbacks": rollbacks}
    announce = functools.partial(self.certificate.add_save, step)
    self.checkpoints.save(step, tree, metadata, before=self.flush, announce=announce)

  def save_copy(self, step: int, tree: dict[str, Any], rollbacks: dict[str, int]) -> None:
    """Start an emergency copy of a step; see `checkpoints/emergency.py`. Raise as `save`."""
    check_unchanged()
    metadata = self.identity | {"rollbacks": rollbacks}
    announce = functools.partial(self.certificate.add_save, step)
    self.checkpoints.save_copy(step, tree, metadata, self.flush, announce)

  def wait_for_save(self) -> None:
    """Wait until the last checkpoint is committed."""
    self.checkpoints.wait()
    self.note_saved()

  def note_saved(self) -> None:
    """Record the first committed step, so that the run never starts from scratch afterwards."""
    if (
      self._primary
      and not self._recorded_save
      and self.saved
      and self.checkpoints.is_committed(self.saved)
    ):
      self._recorded_save = True
      self.check()
      workdirs.add_line(self.workdir, {"saved": self.saved})
      self.flush()

  def check(self) -> None:
    """Raise TransientError if another run has taken the workdir; call it before every write."""
    if self._primary:
      self._lock.check()

  def flush(self, is_starting: bool = False) -> None:
    """Write the metrics and the other small files to the disk or the object store.

    Args:
      is_starting: whether no step has begun, so that the watchdog counts each upload as progress.
    Raises:
      TransientError: another run has taken the workdir.
    """
    self.check()
    self._writer.flush()
    self.certificate.flush()

    def check_before_upload() -> None:
      self.check()
      if is_starting:
        self.beat("uploading the small files of the workdir")

    if self._mirror and self._primary:
      self._mirror.push(check_before_upload)

  def __exit__(self, error_type, *_) -> None:
    """Wait for the last checkpoint, close the metrics and release the workdir."""
    outcome = {None: "finished", Preempted: "paused"}.get(error_type, "failed")
    with self._stack, contextlib.ExitStack() as stack:
      if self._writer:
        stack.callback(self._writer.close, outcome)
        if self.certificate:
          stack.callback(self.certificate.close)
          stack.callback(self.flush)
      self.checkpoints.close()


def _positive_count(config: Any, key: str) -> int | None:
  """Return a positive integer of a saved config; None for anything else."""
  number = config.get(key) if isinstance(config, dict) else None
  return number if type(number) is int and number > 0 else None


def _open_checkpoints(path: str, config: ConfigDict, check: Callable[[], None]) -> Checkpoints:
  keys = ("every", "keep_last", "keep_every", "save_timeout_seconds")
  options = {key: config.checkpoint[key] for key in keys}
  if config.checkpoint.emergency:
    from t5x_like.checkpoints.emergency import EmergencyCheckpoints

    return EmergencyCheckpoints(path, config.checkpoint.emergency, check=check, **options)
  return Checkpoints(path, check=check, **options)
