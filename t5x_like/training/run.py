"""A run: the objects of a recipe, opened in a workdir, checked, restored and ready to step."""

import contextlib
import functools
import math
import pathlib
import time
from typing import NoReturn

import jax
from ml_collections import ConfigDict

from t5x_like.files.places import Mirror, check_writable, directory, is_remote
from t5x_like.nn import params
from t5x_like.parallel import distributed
from t5x_like.parallel.rules import from_local_rows, local_rows, sharding_table
from t5x_like.report import results
from t5x_like.report.writer import MetricsWriter, read_metrics, set_aside
from t5x_like.runtime import process
from t5x_like.runtime.watchdog import Watchdog
from t5x_like.training import history, init_from, opening, phases
from t5x_like.training import workdir as workdirs
from t5x_like.training.compilation import compile_step
from t5x_like.training.evaluation import Group
from t5x_like.training.guard import RolledBack, stopped, target, told
from t5x_like.training.meter import Meter
from t5x_like.training.recomputation import computed_twice
from t5x_like.training.selection import FOLDER, Selection
from t5x_like.training.state import to_tree

_FOLDERS = ("checkpoints", "logs", "pictures", "profile", "samples", FOLDER)  # that a run writes to


class Run:
  """Opens a run, resuming it if the workdir holds one.

  All errors that can be detected are raised before the first step: in the config, the mesh, the data, the vocabulary,
  or a workdir of another config. A context manager; on exit it closes the writer and waits for the last checkpoint.

  Args:
    config: a resolved config (`assembly.resolve`).
    workdir: a directory, made if missing, or an address that fsspec knows.
    from_step: a saved step to go back to, once: steps saved after it are set aside, and later starts that ask for the
      same continue.

  Attributes:
    state, step, saved: the current state, its step, and the step that was saved last.
    total_steps: from the config.
    address: the workdir as it was given; `workdir` is a local directory that stands for it.
    between_batches: called between the batches of evaluations.
  """

  def __init__(self, config: ConfigDict, workdir: str, from_step: int | None = None):
    self.address, self.total_steps = directory(workdir), config.total_steps
    self._primary, self.between_batches = process.first(), lambda: None
    self._mirror = Mirror(self.address) if is_remote(self.address) else None
    self.workdir = self._mirror.local if self._mirror else pathlib.Path(self.address)
    self._watchdog = Watchdog(config.step_timeout_seconds, self.workdir / "logs", jax.process_index())
    beat = lambda: (self._watchdog.beat("evaluating"), self.between_batches())  # noqa: E731
    checked = opening.checked(config, self.address, beat)
    config = self.config = checked.config
    self._phases, self._parts, self._cores = checked.phases, checked.parts, checked.cores
    self._evaluation = checked.evaluation
    *early, main = self._phases
    self._identity = workdirs.identity(config, main.task, {phase.name: phase.task for phase in early})
    with contextlib.ExitStack() as stack:
      self._start(from_step, stack)
      self._stack = stack.pop_all()

  def _start(self, from_step: int | None, stack: contextlib.ExitStack) -> None:
    """Takes the workdir, restores, and compiles.

    What the run goes on from is read once the workdir is this run's: until then, another may add to it.
    """
    if self._primary:
      self._held = stack.enter_context(contextlib.closing(workdirs.hold(self.address)))
      if self._mirror:
        self._mirror.pull()
    self._past = opening.past(self.workdir, self.address)
    changes = opening.check(self._past, self.address, self.config, self._identity)
    if self._primary:
      check_writable("--workdir", self.workdir, _FOLDERS)
    stack.enter_context(self._watchdog)
    process.say(sharding_table(params.named_params(self._parts.model), self._parts.rules))
    for change in changes:
      process.say(f"resuming with a changed config: {change}")
    self._checkpoints = opening.open_checkpoints(self.address, self.config)
    self._pending: tuple[int, dict[str, jax.Array]] | None = None
    self._selection: Selection | None = None
    self._evaluated: tuple[int, dict[str, Group]] | None = None
    self._meter: Meter | None = None
    self._phase: phases.Phase | None = None
    back = from_step is not None and from_step != self._past.went_back
    self._restore(from_step if back else None)
    if back:
      self._checkpoints.set_aside(from_step, "set_aside")
      if self._primary:
        set_aside(self.workdir)
    if self._primary:
      vocabulary = self._phases[-1].task.vocabulary
      opening.record(self.workdir, self.step, self._identity, changes, self._cores, vocabulary, from_step)
      self._noted = self.step > 0
    self._open_writer(self._past.last_line(self.step))
    self._flush()
    if self.step < self.total_steps:
      self._enter_phase()
    else:
      process.say(
        f"{self.address} is finished at step {self.step}; set --config.total_steps={2 * self.step} to continue"
      )

  def _enter_phase(self) -> None:
    """Compiles the step for the current phase and opens its batches."""
    phase, parts = phases.at(self._phases, self._position), self._parts
    known, self._phase = phase is self._phase, phase
    if len(self._phases) > 1:
      process.say(f"phase {phase.name} from step {self.step}")
    self._rows = local_rows(parts.rules.batch(), phase.config.batch_size)
    batches = phases.batches(self._phases, self._position, self._rows)
    self._watchdog.beat("compiling")
    if not known:  # as after a rollback
      self._step, self._cost = compile_step(phase.config, parts, phase.task)
    self._meter = Meter(batches, self._cost, self._goodput, phase.task.vocabulary.pad_id)

  @property
  def _position(self) -> int:
    """The step whose batch is next: later than `step` if the run has gone back and passed over batches."""
    return self.step + self._rollbacks["batches_passed"]

  def _restore(self, step: int | None) -> None:
    found = opening.restore(
      self.address, self._checkpoints, self.config, self._parts, self._identity, self._past.trained, step
    )
    self.state, self.step, self._rollbacks = found.state, found.step, found.rollbacks
    self.saved = self.step
    if found.loaded and self._primary:
      workdirs.write(self.workdir, init_from.FILE, found.loaded)

  def _open_writer(self, expected: int = 0) -> None:
    self._writer = MetricsWriter(
      self.workdir, resume_step=self.step, total_steps=self.total_steps, primary=self._primary, expected=expected
    )
    if missing := self._writer.missing:
      process.say(
        f"{self.address}/metrics.jsonl: steps {missing[0]} to {missing[1]} have no metrics (the file was cut or "
        "removed); the report leaves a gap there"
      )
    if self.config.selection:
      rows = distributed.from_first(lambda: read_metrics(self.workdir))
      self._selection = Selection(self.config, self.address, rows)
    self._goodput = opening.goodput(self.workdir, self._past.began, self.step)

  def advance(self) -> None:
    """Dispatches the next step, then writes the metrics of the one before it."""
    if self._position == self._phase.until:
      self.drain()
      self._enter_phase()
    sharding, batch_size = self._parts.rules.batch(), self._phase.config.batch_size
    self._watchdog.beat(f"computing step {self.step + 1}")
    local = self._meter.next_batch()
    since = time.perf_counter()
    batch = from_local_rows(sharding, self._rows, local, batch_size)
    previous = self._pending
    self.step += 1
    twice = self.config.recompute_every and self.step % self.config.recompute_every == 0
    step = functools.partial(computed_twice, self._step) if twice else self._step
    self.state, metrics = step(self.state, batch)
    self._meter.dispatched(since)
    self._pending = (self.step, metrics)
    self._note_saved()
    self._write(previous)

  def drain(self) -> None:
    """Writes the metrics of the last dispatched step, waiting for it."""
    pending, self._pending = self._pending, None
    self._write(pending)

  def _write(self, pending) -> None:
    if pending is None:
      return
    step, metrics = pending
    values = {name: float(value) for name, value in jax.device_get(metrics).items()} | self._meter.step_done()
    why = told(self._parts.guard, values)
    if why or step % self.config.log_every == 0 or step == self.total_steps:
      self._writer.write(step, {f"train/{name}": value for name, value in values.items()})
    if why:
      self._refuse(step, values, why)

  def _refuse(self, step: int, values: dict[str, float], why: str) -> None:
    """Does what the guard says about an update that is not a number, or a spike; all processes come here together."""
    guard = self._parts.guard
    if guard.skips and values["updates_refused"] <= guard.at_most and math.isfinite(values["parameter_norm"]):
      process.say(f"step {step}: {why}; this update was left out")
    elif guard.steps and self._rollbacks["times"] < guard.at_most:
      self._roll_back(step, why)
    else:
      self._checkpoints.wait()
      raise stopped(why, step, self._checkpoints.steps())

  def _roll_back(self, bad: int, why: str) -> NoReturn:
    """Goes back to a regular step and on with the batches after those of step `bad`."""
    self._checkpoints.wait()
    self._check_mine()
    saved = distributed.from_first(self._checkpoints.steps)
    to = target(self._parts.guard, why, bad, [s for s in saved if s % self.config.checkpoint.every == 0])
    times, passed = self._rollbacks["times"] + 1, self._rollbacks["batches_passed"] + bad - to
    self._writer.close()
    self._checkpoints.set_aside(to, "rolled_back")
    self._restore(to)
    self._rollbacks, self._pending = {"times": times, "batches_passed": passed}, None
    if self._primary:
      history.add(self.workdir, {"rollback": why, "from": bad, "step": to, "batches_passed": passed})
    self._open_writer()
    process.say(f"step {bad}: {why}; back to step {to}, and on with the batches of step {bad + 1}")
    self._enter_phase()
    raise RolledBack

  def evaluate(self) -> None:
    """Runs every evaluator on the current parameters and writes the results."""
    self.drain()
    since = time.perf_counter()
    metrics, samples = {}, []
    groups = self._evaluation(self.state.params)
    self._evaluated = (self.step, groups)
    self._check_mine()
    for group, found in groups.items():
      values = found.metrics | {"seconds": found.seconds}
      metrics |= {f"eval/{group}/{metric}": value for metric, value in values.items()}
      samples += [sample | {"task": group, "step": self.step} for sample in found.samples]
    if self._selection:
      self._selection.offer(self.step, metrics, self.state.params, self._identity)
    if samples and self._primary:
      workdirs.write_lines(self.workdir / "samples", f"{self.step:09d}.jsonl", samples)
    if metrics:  # last, as `evaluated` goes by them
      self._writer.write(self.step, metrics)
    if self._meter:
      self._meter.away(since)

  def save(self) -> None:
    """Starts a checkpoint of this step, after putting all metrics up to it on disk."""
    self.drain()
    self._watchdog.beat(f"saving step {self.step}")
    since = time.perf_counter()
    metadata = self._identity | {"rollbacks": self._rollbacks}
    self.saved = self.step
    self._checkpoints.save(self.step, to_tree(self.state), metadata, before=self._flush)
    self._meter.away(since)

  def _note_saved(self) -> None:
    """Puts into history that a first step is committed: without checkpoints, this run then never begins again."""
    if self._primary and not self._noted and self.saved and self._checkpoints.committed(self.saved):
      self._noted = True
      self._check_mine()
      history.add(self.workdir, {"saved": self.saved})
      self._flush()

  @property
  def exhausted(self) -> bool:
    """Whether training has stopped early, as `config.selection` says."""
    return self._selection is not None and self._selection.exhausted

  @property
  def best(self) -> tuple[int, dict[str, Group]] | None:
    """The step that `config.selection` picked and its results; None if they are not of the last evaluation here."""
    picked = self._selection and self._selection.best_step
    return self._evaluated if self._evaluated and self._evaluated[0] == picked else None

  def evaluated(self) -> bool:
    """Whether the metrics hold an evaluation of this step; the same answer in all processes."""

    def found() -> bool:
      rows = [row for row in read_metrics(self.workdir) if row["step"] == self.step]
      return any(name.startswith("eval/") for row in rows for name in row)

    return distributed.from_first(found)

  def finish(self) -> None:
    """Evaluates the last step, waits for its checkpoint and writes the report."""
    self.drain()
    if not self.evaluated():
      self.evaluate()
    self.wait_for_save()
    self._flush()
    self._watchdog.beat("making pictures")
    groups = self._evaluated[1] if self._evaluated and self._evaluated[0] == self.step else {}
    tasks = self._phases[-1].task, self._evaluation.task
    results.draw(self.workdir, self.config, self._parts, self.state.params, *tasks, groups)
    if self._primary:
      process.say(f"report: {self.address}/{results.write_page(self.workdir).name}")
    self._flush()

  def _flush(self) -> None:
    """Puts the metrics and the other small files where they belong, unless another run has taken the workdir."""
    self._check_mine()
    self._writer.flush()
    if self._mirror and self._primary:
      self._mirror.push()

  def _check_mine(self) -> None:
    """Raises TransientError if another run has taken the workdir; comes before all that it must not see."""
    if self._primary:
      self._held.check()

  def wait_for_save(self) -> None:
    self._checkpoints.wait()
    self._note_saved()

  def __enter__(self) -> "Run":
    return self

  def __exit__(self, *_) -> None:
    try:
      self._checkpoints.close()
    finally:
      try:
        self._flush()
        self._writer.close()
      finally:
        self._stack.close()
