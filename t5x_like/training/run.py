"""A run: the state of training in a workdir, and the parts of one iteration of the loop."""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import jax
from ml_collections import ConfigDict

from t5x_like import slots, training
from t5x_like.certificate.recorder import HostRows
from t5x_like.files.paths import check_directory
from t5x_like.parallel import distributed
from t5x_like.parallel.rules import from_local_rows
from t5x_like.report import run_report
from t5x_like.runtime import process
from t5x_like.training import phases, restoring
from t5x_like.training.build import Assembly, Parts, assemble
from t5x_like.training.compilation import StepCost, compile_step
from t5x_like.training.ema import evaluation_weights
from t5x_like.training.evaluation import GroupResults
from t5x_like.training.guard import (
  RefusedSteps,
  RolledBack,
  refusal_reason,
  rollback_target,
  stop_error,
)
from t5x_like.training.meter import StepMeter
from t5x_like.training.selection import Selection
from t5x_like.training.session import Session
from t5x_like.training.state import to_tree

if TYPE_CHECKING:
  from t5x_like.training.export import RunExports


@dataclasses.dataclass(frozen=True)
class CompiledPhase:
  """The current phase of a run with its compiled step.

  Attributes:
    phase: the current phase.
    host_rows: the rows of a batch that this host's devices hold.
    step: `(state, batch) -> (state, metrics)`; donates the state.
    cost: the cost of one step on whole rows.
    meter: reads the phase's batches and times its steps.
  """

  phase: phases.Phase
  host_rows: HostRows
  step: Callable
  cost: StepCost
  meter: StepMeter


class TrainingRun:
  """The state of a run and its step, restored from the workdir or initialised.

  Args:
    assembly: the tasks, parts and evaluators of the run.
    session: the session that holds the workdir.

  Attributes:
    config: the resolved config, with the special ids of the vocabulary.
    state, step: the current state and its step.
  """

  def __init__(self, assembly: Assembly, session: Session):
    self.assembly = assembly
    self.config = assembly.config
    self.session = session
    restored = restoring.restore(assembly, session, session.return_step)
    passed = restored.rollbacks["batches_passed"]
    session.begin(restored.step, restored.loaded, restored.digest, passed)
    self.state = restored.state
    self.step = restored.step
    self._rollbacks = restored.rollbacks
    self._copied_step = restored.step
    self._pending: tuple[int, dict[str, jax.Array]] | None = None
    self._evaluated: tuple[int, dict[str, GroupResults]] | None = None
    self._compiled_phase: CompiledPhase | None = None
    self._exports = self._open_exports()
    self._read_metrics()
    if self.step < self.config.total_steps:
      self._enter_phase()
      run_report.introduce(session, assembly, self._compiled_phase.cost, self.step)
    else:
      process.log(
        f"{session.address} is finished at step {self.step}; set "
        f"--config.total_steps={2 * self.step} to continue"
      )

  def _open_exports(self) -> "RunExports | None":
    """Open the exports of `config.export`, and write those that an earlier start did not."""
    if not self.config.export:
      return None
    from t5x_like.training.export import RunExports

    exports = RunExports(self.config, self.session.address)
    exports.write_missing(self.step, self.session.checkpoints.steps())
    return exports

  def _read_metrics(self) -> None:
    """Restore selection, goodput and the refused steps from the metrics up to this step."""
    self._selection: Selection | None = None
    if self.config.selection:
      rows = distributed.broadcast_from_first(self.session.metrics)
      self._selection = Selection(self.config, self.session.address, rows)
    self._goodput = self.session.goodput(self.step)
    guard = self.assembly.parts.guard
    refused_steps = []
    if guard.skips:
      refused_steps = distributed.broadcast_from_first(self._find_refused_steps)
    self._refused_steps = RefusedSteps(guard, refused_steps)

  def _find_refused_steps(self) -> list[int]:
    """Return the steps of the guard's horizon whose updates were left out."""
    first = self.step - self.assembly.parts.guard.horizon
    rows = [row for row in self.session.metrics() if first < row["step"] <= self.step]
    return [row["step"] for row in rows if row.get("train/updates_refused")]

  @property
  def compiled_phase(self) -> CompiledPhase | None:
    """The current phase with its compiled step; None for a run that is finished already."""
    return self._compiled_phase

  @property
  def _position(self) -> int:
    """The number of batches passed over; larger than `step` if rollbacks have skipped batches."""
    return self.step + self._rollbacks["batches_passed"]

  def _enter_phase(self) -> None:
    """Compile the step of the current phase and open its batches."""
    run_phases = self.assembly.phases
    phase = phases.phase_at(run_phases, self._position)
    if len(run_phases) > 1:
      process.log(f"phase {phase.name} from step {self.step}")
    self.session.beat("compiling")
    if self._compiled_phase and self._compiled_phase.phase is phase:  # after a rollback
      step = self._compiled_phase.step
      cost = self._compiled_phase.cost
    else:
      step, cost = compile_phase(self.assembly.parts, phase)
    sharding = self.assembly.parts.rules.batch()
    host_rows = HostRows.from_sharding(sharding, phase.config.batch_size)
    rows = host_rows.rows
    if phase.task.buckets > 1:
      batches = step.cut(phases.iterate_batches(run_phases, self._position), rows)
      batch_cost = step.cost
    else:
      batches = phases.iterate_batches(run_phases, self._position, rows)
      batch_cost = lambda batch: cost  # noqa: E731
    meter = StepMeter(batches, batch_cost, self._goodput, phase.task.vocabulary.pad_id)
    self._compiled_phase = CompiledPhase(phase, host_rows, step, cost, meter)

  def advance(self) -> None:
    """Dispatch the next step, then write the metrics of the one before it.

    Raises:
      RolledBack: the guard took the run back to an earlier step.
    """
    if self._is_copy_due():
      self._save_copy()
    if self._position == self._compiled_phase.phase.until:
      self.drain()
      self._enter_phase()
    compiled = self._compiled_phase
    rules = self.assembly.parts.rules
    self.session.beat(f"computing step {self.step + 1}")
    host_batch = compiled.meter.next_batch()
    since = time.perf_counter()
    batch_size = compiled.phase.config.batch_size
    batch = from_local_rows(rules.batch(), compiled.host_rows.rows, host_batch, batch_size)
    previous = self._pending
    self.step += 1
    step = compiled.step
    if self.config.recompute_every and self.step % self.config.recompute_every == 0:
      from t5x_like.training.recomputation import compute_twice

      step = functools.partial(compute_twice, step)
    self.state, metrics = step(self.state, batch)
    compiled.meter.record_dispatch(since)
    self.session.certificate.note_batch(self.step, compiled.host_rows, host_batch)
    self._pending = (self.step, metrics)
    self.session.note_saved()
    self._write(previous)

  def drain(self) -> None:
    """Wait for the last dispatched step and write its metrics.

    Raises:
      RolledBack: the guard took the run back to an earlier step.
    """
    pending = self._pending
    self._pending = None
    self._write(pending)

  def _write(self, pending: tuple[int, dict[str, jax.Array]] | None) -> None:
    """Write the metrics of a step and follow the guard's verdict, the same in all processes.

    Raises:
      RolledBack: the guard took the run back to an earlier step.
      NumericError: the run must stop.
    """
    if pending is None:
      return
    step, metrics = pending
    guard = self.assembly.parts.guard
    values = {name: float(value) for name, value in jax.device_get(metrics).items()}
    reason = refusal_reason(guard, values)
    batch_index = step - 1 + self._rollbacks["batches_passed"]
    self.session.certificate.add_step(step, batch_index, values, reason)
    values |= self._compiled_phase.meter.finish_step()
    if reason or step % self.config.log_every == 0 or step == self.config.total_steps:
      self.session.write_metrics(step, {f"train/{name}": value for name, value in values.items()})
    if not reason:
      return
    may_skip = guard.skips and values["updates_refused"] <= guard.limit
    if may_skip and math.isfinite(values["parameter_norm"]):
      too_many = self._refused_steps.add(step)
      if too_many is None:
        process.log(f"step {step}: {reason}; this update was left out")
        return
      reason = f"{reason}, and {too_many}"
    if guard.steps and self._rollbacks["times"] < guard.limit:
      self._roll_back(step, reason)
      raise RolledBack
    self.session.checkpoints.wait()
    raise stop_error(reason, step, self.session.checkpoints.steps())

  def _roll_back(self, refused_step: int, reason: str) -> None:
    """Return to a regular checkpoint, and continue with the batches after the refused step."""
    session = self.session
    session.checkpoints.wait()
    session.check()
    saved = distributed.broadcast_from_first(session.checkpoints.steps)
    regular = [step for step in saved if step % self.config.checkpoint.every == 0]
    target_step = rollback_target(self.assembly.parts.guard, reason, refused_step, regular)
    times = self._rollbacks["times"] + 1
    batches_passed = self._rollbacks["batches_passed"] + refused_step - target_step
    restored = restoring.restore(self.assembly, session, target_step)
    session.go_back(target_step, restored.digest, refused_step, reason, batches_passed)
    self.state = restored.state
    self.step = restored.step
    self._pending = None
    self._rollbacks = {"times": times, "batches_passed": batches_passed}
    self._read_metrics()
    process.log(
      f"step {refused_step}: {reason}; back to step {target_step}, continuing with the batches "
      f"of step {refused_step + 1}"
    )
    self._enter_phase()

  def save(self) -> None:
    """Start a checkpoint of this step, unless it is saved; call `drain` first."""
    if self.session.saved == self.step:
      return
    self.session.beat(f"saving step {self.step}")
    since = time.perf_counter()
    self.session.save(self.step, to_tree(self.state), self._rollbacks)
    if self._exports:
      self._exports.write(self.step, self.weights)
    self._compiled_phase.meter.exclude_time(since, is_save=True)

  def _is_copy_due(self) -> bool:
    """Return whether this step is to be copied near each host; see `checkpoints/emergency.py`."""
    emergency = self.config.checkpoint.emergency
    return bool(emergency) and self.step % emergency.every == 0 and self.step != self._copied_step

  def _save_copy(self) -> None:
    """Start an emergency copy of this step. Raises RolledBack as `drain`."""
    self.drain()
    self.session.beat(f"copying step {self.step}")
    since = time.perf_counter()
    self.session.save_copy(self.step, to_tree(self.state), self._rollbacks)
    self._compiled_phase.meter.exclude_time(since)
    self._copied_step = self.step

  def evaluate(self, stop_requested: Callable[[], bool] = lambda: False) -> bool:
    """Run every evaluator on the current parameters and write the results.

    Args:
      stop_requested: called before every batch; ends the evaluation once it returns true.
    Returns:
      False if the evaluation was stopped.
    """
    since = time.perf_counter()
    session = self.session

    def beat_and_check() -> bool:
      session.beat("evaluating")
      return stop_requested()

    groups = self.assembly.evaluation(self.weights, beat_and_check)
    if groups is None:
      return False
    self._evaluated = (self.step, groups)
    session.check()
    metrics = {}
    samples = []
    for group, results in groups.items():
      values = results.metrics | {"seconds": results.seconds}
      metrics |= {f"eval/{group}/{metric}": value for metric, value in values.items()}
      samples += [sample | {"task": group, "step": self.step} for sample in results.samples]
    if self._selection:
      self._selection.offer(self.step, metrics, self.weights, session.identity)
    session.write_samples(self.step, samples)
    if metrics:  # written last: `has_evaluation` takes them as the end of an evaluation
      session.certificate.add_evaluation(self.step, metrics)
      session.write_metrics(self.step, metrics)
    if self._compiled_phase:
      self._compiled_phase.meter.exclude_time(since)
    return True

  @property
  def weights(self) -> dict[str, jax.Array]:
    """The parameters to evaluate, by name: averaged ones where the optimizer keeps them."""
    return evaluation_weights(self.state, self.config.optimizer.use_ema)

  def has_evaluation(self) -> bool:
    """Return whether the metrics hold an evaluation of this step, the same in all processes."""

    def read() -> bool:
      rows = [row for row in self.session.metrics() if row["step"] == self.step]
      return any(name.startswith("eval/") for row in rows for name in row)

    return distributed.broadcast_from_first(read)

  @property
  def is_out_of_patience(self) -> bool:
    """Whether training stops early, as `config.selection` says."""
    return self._selection is not None and self._selection.is_out_of_patience

  @property
  def best(self) -> tuple[int, dict[str, GroupResults]] | None:
    """The step that `config.selection` picked and its results, if the last evaluation is of it."""
    if self._selection is None or self._evaluated is None:
      return None
    evaluated_step, _ = self._evaluated
    return self._evaluated if evaluated_step == self._selection.best_step else None

  def wait_for_export(self) -> None:
    """Wait for the export in progress, if there is one; raise its error, if it failed."""
    if self._exports:
      self.session.beat("exporting")
      self._exports.wait()

  def finish(self) -> None:
    """Wait for the last checkpoint, and write the pictures and the report of an evaluated run."""
    session = self.session
    assembly = self.assembly
    session.wait_for_save()
    self.wait_for_export()
    session.flush()
    session.beat("making pictures")
    groups = {}
    if self._evaluated and self._evaluated[0] == self.step:
      groups = self._evaluated[1]
    run_report.draw(
      session.workdir,
      self.config,
      assembly.parts,
      self.weights,
      assembly.task,
      assembly.evaluation.task,
      groups,
    )
    if process.is_first():
      page = run_report.write_page(session.workdir, session.address, session.beat)
      if page is not None:
        process.log(f"report: {session.address}/{page.name}")
    session.flush()


def compile_phase(parts: Parts, phase: phases.Phase) -> tuple[Callable, StepCost]:
  """Compile the step of a phase, by a module of its own for buckets and for some objectives."""
  step_module = parts.objective.step_module
  if phase.task.buckets > 1:
    step_module = phase.task.bucket_module
  if step_module:
    module = slots.module(step_module, training)
    return module.compile_run_step(phase.config, parts, phase.task)
  batch = parts.rules.abstract_batch(phase.task.features, phase.config.batch_size)
  return compile_step(phase.config, parts, batch)


@contextlib.contextmanager
def open_training_run(
  config: ConfigDict, workdir: str, from_step: int | None = None, flags: Sequence[str] = ()
) -> Iterator[TrainingRun]:
  """Open a run, resuming it if the workdir holds one.

  On exit, wait for the last checkpoint and leave the workdir. All errors that can be detected are
  raised before the first step: in the config, the mesh, the data, the vocabulary, or a workdir of
  another config.

  Args:
    config: the config of a recipe, not yet resolved.
    workdir: a directory, created if missing, or an address that fsspec knows.
    from_step: a saved step to return to, once. Later steps are set aside; later starts with the
      same `from_step` continue normally.
    flags: the flags that made the config, for the workdir's history.
  """
  address = check_directory(workdir)
  assembly = assemble(config, address)
  if assembly.config.export:
    from t5x_like.training.export import require_one_local_process

    require_one_local_process(address)
  with Session(address, assembly, from_step, flags) as session:
    run = TrainingRun(assembly, session)
    try:
      yield run
    finally:
      run.wait_for_export()
