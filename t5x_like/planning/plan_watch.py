"""Compare the steps of a run with its plan, and name the causes of deviations.

A deviation is a difference of more than a tenth (`promise.TOLERANCE`) of the promised value. Its
cause is read from the compiled program, or from the meter of the steps:

| kind | cause |
|---|---|
| version, config | other packages; other keys of the recipe |
| topology, mesh, batch, core | other devices, mesh, rows or features, or attention core |
| collective | more bytes are sent, or waited for, over a mesh axis |
| memory | the program, or the most bytes in use, is larger |
| input | steps wait for data; waits during which the devices compute do not count |
| recompilation | a step was compiled during training |
| checkpoint | saves delay the steps |
| step | none of these: computing itself is slower than promised |
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator

import jax
from ml_collections import ConfigDict

from t5x_like.errors import UserError, one_line
from t5x_like.planning import hardware, promise
from t5x_like.planning.collectives import collectives
from t5x_like.planning.hlo import Program
from t5x_like.planning.promise import TOLERANCE, Deviation, Promise
from t5x_like.report import plan_table
from t5x_like.runtime import process
from t5x_like.training import workdir as workdirs
from t5x_like.training.meter import StepTotals
from t5x_like.training.run import CompiledPhase, TrainingRun

_WINDOW_STEPS = 10  # the fewest that are compared
_WRITE_SECONDS = 5.0
_GIGA = 1e9
_SECONDS_PER_MINUTE = 60.0


def select_promise(promises: list[Promise]) -> Promise:
  """Return the plan for this process's devices: of the same kind, and as many if there is one.

  Raises:
    UserError: all plans are for other kinds of devices.
  """
  devices = jax.devices()
  device_kind = devices[0].device_kind
  suitable = [plan for plan in promises if plan.device_kind == device_kind]
  if not suitable:
    kinds = ", ".join(f"{plan.topology} ({plan.device_kind})" for plan in promises)
    raise UserError(
      f"--plan={promises[0].path}: is a plan for {kinds}, but this run has {device_kind}; make a "
      "plan for it, or leave the flag out"
    )
  shape = (len(devices), hardware.slice_shape(devices))
  for plan in suitable:
    if (plan.program.devices, plan.program.slice_shape) == shape:
      return plan
  return suitable[0]


def select_stored_promise(promises: list[Promise]) -> Promise | None:
  """Return the stored plan for exactly this process's devices; None if there is none."""
  devices = jax.devices()
  hardware_here = (devices[0].device_kind, len(devices), hardware.slice_shape(devices))
  for plan in promises:
    if (plan.device_kind, plan.program.devices, plan.program.slice_shape) == hardware_here:
      return plan
  return None


@contextlib.contextmanager
def watch_run(plan: Promise, recipe: ConfigDict, run: TrainingRun) -> Iterator[None]:
  """Compare the steps of a run with its plan, and print the table of both at the end.

  Args:
    recipe: the run's config, not yet resolved.
    run: an open run; nothing is compared if it is finished already.
  """
  if run.compiled_phase is None:
    yield
    return
  watch = PlanWatch(plan, recipe, run)
  run.session.annotators.append(watch.annotate)
  try:
    yield
  finally:
    process.log(watch.summary())


class PlanWatch:
  """Compares the steps of a run with its plan, in windows of at least ten steps.

  The steps of other phases than the plan's are left out.

  Args:
    plan: the promise.
    recipe: the run's config, not yet resolved.
    run: an open run with steps to compute.
  """

  def __init__(self, plan: Promise, recipe: ConfigDict, run: TrainingRun):
    self._plan = plan
    self._run = run
    self._program_deviations: list[Deviation] | None = None  # None before the planned phase
    self._step_deviations: dict[str, Deviation] = {}  # the first deviation of each kind
    self._active_kinds: set[str] = set()  # the kinds of deviations in the last window
    self._config_deviations = promise.config_deviations(plan, recipe)
    self._compiled: CompiledPhase | None = None
    self._memory = 0.0
    self._overall = StepTotals()
    self._overall_seconds = 0.0  # elapsed time, with saves and evaluations
    self._last_write = -math.inf
    self._begin_phase()

  def annotate(self, step: int, metrics: dict[str, float]) -> dict[str, float]:
    """Return the metrics `plan/…` of the window that ends with a step; none before its end.

    Deviations that the last window did not have are printed.
    """
    if "train/seconds_per_step" not in metrics:
      return {}
    if self._run.compiled_phase is not self._compiled:
      self._begin_phase()
    if not self._is_planned_phase():
      return {}
    totals = self._compiled.meter.totals
    window = totals.since(self._window)
    is_last = step == self._run.config.total_steps
    if window.steps < _WINDOW_STEPS and not is_last:
      return {}
    now = time.perf_counter()
    if self._window.steps == 0:
      self._window_start = self._compiled.meter.totals_start
    seconds = now - self._window_start
    self._window = dataclasses.replace(totals)
    self._window_start = now
    self._overall.add(window)
    self._overall_seconds += seconds
    # The last steps are compared alone only if they are many, or all.
    is_compared = window.steps >= _WINDOW_STEPS or 0 < window.steps == self._overall.steps
    if is_compared:
      self._report(step, window)
    if is_last or now - self._last_write > _WRITE_SECONDS:
      self._write(now)
    return self._ratios(window, seconds) if is_compared else {}

  def summary(self) -> str:
    """Return a printable table of the plan and the measurements."""
    return plan_table.text(self._comparison())

  def _begin_phase(self) -> None:
    """Begin a window, and compare the program of the planned phase with the plan's."""
    self._compiled = self._run.compiled_phase
    self._window = StepTotals()  # the totals at the start of the window
    self._window_start = 0.0
    if self._program_deviations is not None or not self._is_planned_phase():
      return
    program = describe_program(self._run, self._compiled)
    self._memory = program.memory
    self._program_deviations = promise.program_deviations(self._plan, program)
    process.log(
      f"plan: {self._plan.path} promises {self._plan.seconds:.4g} s a step on {self._plan.topology}"
    )
    for deviation in self._fixed_deviations():
      process.log(f"plan: {deviation}")

  def _is_planned_phase(self) -> bool:
    """Return whether the current phase is the plan's; without a phase, a plan is for the last."""
    phase = self._compiled.phase
    if self._plan.phase is None:
      return phase is self._run.assembly.phases[-1]
    return phase.name == self._plan.phase

  def _fixed_deviations(self) -> list[Deviation]:
    """Return the deviations of config and program, which do not change from step to step."""
    return self._config_deviations + (self._program_deviations or [])

  def _report(self, step: int, window: StepTotals) -> None:
    """Print the first window's seconds, and the deviations of kinds that are new in a window."""
    if self._overall.steps == window.steps:
      seconds = window.seconds / window.steps
      share = 100 * seconds / self._plan.seconds
      process.log(
        f"plan: {seconds:.4g} s a step up to step {step}, {share:.0f} % of the promised "
        f"{self._plan.seconds:.4g} s"
      )
    is_other_program = any(
      deviation.kind not in ("version", "memory") for deviation in self._fixed_deviations()
    )
    deviations = step_deviations(self._plan, window, is_other_program)
    deviations += save_deviations(self._plan, self._overall, self._run.config.checkpoint)
    peak_bytes = _peak_bytes()
    self._memory = max(self._memory, peak_bytes)
    if not is_other_program:
      deviations += promise.peak_memory_deviations(self._plan, peak_bytes)
    for deviation in deviations:
      if deviation.kind not in self._active_kinds:
        process.log(f"plan: step {step}: {deviation}")
      self._step_deviations.setdefault(deviation.kind, deviation)
    self._active_kinds = {deviation.kind for deviation in deviations}

  def _ratios(self, window: StepTotals, seconds: float) -> dict[str, float]:
    """Return the measurements of a window as shares of the promise."""
    promised_seconds = window.steps * self._plan.seconds
    ratios = {
      "plan/seconds_ratio": window.seconds / promised_seconds,
      "plan/goodput": promised_seconds / seconds,
    }
    mfu = self._mfu(window)
    if mfu and self._plan.mfu:
      ratios["plan/mfu_ratio"] = mfu / self._plan.mfu
    return ratios

  def _mfu(self, totals: StepTotals) -> float | None:
    peak = self._compiled.cost.peak
    return totals.flops / totals.seconds / peak if peak and totals.seconds else None

  def _comparison(self) -> plan_table.Comparison:
    """Return the record for the console and the page."""
    plan = self._plan
    overall = self._overall
    seconds = None
    goodput = None
    if overall.steps:
      seconds = overall.seconds / overall.steps
      goodput = overall.steps * plan.seconds / self._overall_seconds
    program = self._compiled.cost.program
    figures = (
      plan_table.Figure("seconds a step", plan.seconds, seconds),
      plan_table.Figure("MFU", plan.mfu, self._mfu(overall)),
      plan_table.Figure("goodput", 1.0, goodput),
      plan_table.Figure("GB a device", plan.program.memory / _GIGA, self._memory / _GIGA),
      plan_table.Figure(
        "seconds to compile", plan.compile_seconds, program.seconds if program else None
      ),
    )
    deviations = [*self._fixed_deviations(), *self._step_deviations.values()]
    return plan_table.Comparison(
      plan.path,
      plan.topology,
      overall.steps,
      tuple(dataclasses.asdict(figure) for figure in figures),
      tuple(map(str, deviations)),
    )

  def _write(self, now: float) -> None:
    """Write the record into the workdir, from the first process."""
    self._last_write = now
    if process.is_first():
      record = dataclasses.asdict(self._comparison())
      workdirs.write_json(self._run.session.workdir, plan_table.FILE, record)


def describe_program(run: TrainingRun, compiled: CompiledPhase) -> promise.Program:
  """Return the properties of a phase's compiled step that a plan also has."""
  config = compiled.phase.config
  mesh = dict(run.assembly.parts.rules.mesh.shape)
  devices = jax.devices()
  program = compiled.cost.program
  memory = 0.0
  rows = None
  cores = {}
  if program:
    cores = program.cores
    analysis = program.compiled.memory_analysis()
    results = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    buffers = analysis.argument_size_in_bytes + analysis.temp_size_in_bytes
    memory = float(buffers + results + analysis.generated_code_size_in_bytes)
    rows = _read_collectives(program.compiled, mesh)
  return promise.Program(
    devices=len(devices),
    slice_shape=hardware.slice_shape(devices),
    mesh={axis: size for axis, size in mesh.items() if size > 1},
    batch_size=config.batch_size,
    accumulation_steps=config.accumulation_steps,
    features={name: list(x.shape) for name, x in compiled.phase.task.features.items()},
    cores=cores,
    memory=memory,
    collectives=rows,
    versions=promise.select_versions(process.package_versions()),
  )


def _read_collectives(compiled: jax.stages.Compiled, mesh: dict[str, int]) -> list[dict] | None:
  """Return the collectives of a program; None, with a line that says why, if they cannot be read.

  Compilers of other versions and platforms may print other instructions.
  """
  try:
    program = Program(compiled.as_text())
    return [row.row() for row in collectives(program, mesh)]
  except Exception as error:  # the run continues: it does not need the comparison
    process.log(f"plan: collectives are not compared: the program is unreadable: {one_line(error)}")
    return None


def step_deviations(plan: Promise, window: StepTotals, is_other_program: bool) -> list[Deviation]:
  """Return the causes by which the steps of a window take longer than promised.

  While a host waits for its devices, waits for data cost nothing.

  Args:
    is_other_program: whether the program is not the plan's, so that computing may take longer.
  """
  promised = plan.seconds * window.steps
  limit = TOLERANCE * promised
  if window.seconds <= promised + limit:
    return []
  waits_for_devices = window.blocked_seconds > TOLERANCE * window.seconds
  wait_seconds = 0.0 if waits_for_devices else window.wait_seconds
  deviations = []
  if wait_seconds > limit:
    text = (
      f"a step waits {wait_seconds / window.steps:.4g} s for data, "
      f"{100 * wait_seconds / promised:.0f} % of the promised {plan.seconds:.4g} s"
    )
    deviations.append(Deviation("input", text))
  if window.compile_seconds > limit:
    text = (
      f"{window.compilations} of {window.steps} steps were compiled first, in "
      f"{window.compile_seconds:.1f} s"
    )
    deviations.append(Deviation("recompilation", text))
  computing = window.seconds - wait_seconds - window.compile_seconds
  if computing > promised + limit and not is_other_program:
    text = (
      f"computing takes {computing / window.steps:.4g} s, promised {plan.seconds:.4g}, by the "
      "planned program and without waits; record a trace with --profile"
    )
    deviations.append(Deviation("step", text))
  return deviations


def save_deviations(plan: Promise, totals: StepTotals, checkpoint: ConfigDict) -> list[Deviation]:
  """Return a deviation if saves take more than a tenth of the promised time between them."""
  if not totals.saves:
    return []
  between_saves = plan.seconds * checkpoint.every
  if checkpoint.minutes:
    between_saves = min(between_saves, _SECONDS_PER_MINUTE * checkpoint.minutes)
  seconds = totals.save_seconds / totals.saves
  if seconds <= TOLERANCE * between_saves:
    return []
  text = (
    f"a save delays training by {seconds:.4g} s, {100 * seconds / between_saves:.0f} % of the "
    f"promised {between_saves:.4g} s between saves"
  )
  return [Deviation("checkpoint", text)]


def _peak_bytes() -> float:
  """Return the most bytes in use on a device so far; 0 where the platform does not count them."""
  statistics = jax.local_devices()[0].memory_stats() or {}
  return float(statistics.get("peak_bytes_in_use", 0))
