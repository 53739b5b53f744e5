"""A run: the objects of a recipe, opened in a workdir, checked, restored and ready to step."""

import json
import math
import pathlib
import time

import jax
import numpy as np
from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.parallel import distributed
from t5x_like.parallel.rules import from_local_rows, local_rows, sharding_table
from t5x_like.training import assembly, phases, process
from t5x_like.training import workdir as workdirs
from t5x_like.training.checkpoint import Checkpoints
from t5x_like.training.compilation import compile_step
from t5x_like.training.environment import attention_cores, environment
from t5x_like.training.evaluation import Evaluation
from t5x_like.training.meter import Meter
from t5x_like.training.report import write_report
from t5x_like.training.state import TrainState, from_tree, init_state, to_tree
from t5x_like.training.writer import MetricsWriter, read_metrics


class Run:
  """Opens a run, resuming it if the workdir holds one.

  All errors that can be detected are raised before the first step: in the config, the mesh, the data, the vocabulary,
  or a workdir of another config. A context manager; on exit it closes the writer and waits for the last checkpoint.

  Args:
    config: a resolved config (`assembly.resolve`).
    workdir: a directory, made if missing.

  Attributes:
    state, step: the current state and its step.
    total_steps: from the config.
  """

  def __init__(self, config: ConfigDict, workdir: str):
    self.config, self.workdir, self.total_steps = config, pathlib.Path(workdir), config.total_steps
    self._primary = process.first()
    parts = self._parts = assembly.build(config)
    self._phases = self._make_phases()
    self._evaluation = Evaluation(config, parts.model, parts.objective, parts.rules)
    *early, main = self._phases
    self._identity = workdirs.identity(config, main.task, {phase.name: phase.task for phase in early})
    changes = self._check_workdir()
    process.say(sharding_table(params.named_params(parts.model), parts.rules))
    for change in changes:
      process.say(f"resuming with a changed config: {change}")
    options = {key: value for key, value in config.checkpoint.to_dict().items() if key != "every"}
    self._checkpoints = Checkpoints(self.workdir / "checkpoints", **options)
    self.state, self.step = self._restore_or_init()
    self._record(changes)
    self._writer = MetricsWriter(workdir, resume_step=self.step, total_steps=self.total_steps, primary=self._primary)
    self._saved = self.step
    self._pending: tuple[int, dict[str, jax.Array]] | None = None
    self._meter: Meter | None = None
    if self.step < self.total_steps:
      self._enter_phase()
    else:
      process.say(f"{workdir} is finished at step {self.step}; set --config.total_steps={2 * self.step} to continue")

  def _make_phases(self) -> list[phases.Phase]:
    """The phases with their tasks, each checked against model and objective."""
    config = self.config
    made = phases.build(
      config, lambda values: process.build_task("task", values.pop("name"), config.train_split, values)
    )
    assembly.check_vocabulary(config, made[-1].task.vocabulary)
    for phase in made:
      assembly.check_batch(phase.config, self._parts.rules, f"phases.{phase.name}.batch_size")
      assembly.check_task(phase.config, self._parts, phase.task)
    return made

  def _enter_phase(self) -> None:
    """Compiles the step for the current phase and opens its batches."""
    phase, parts = phases.at(self._phases, self.step), self._parts
    self._phase = phase
    if len(self._phases) > 1:
      process.say(f"phase {phase.name} from step {self.step}")
    self._rows = local_rows(parts.rules.batch(), phase.config.batch_size)
    batches = phases.batches(self._phases, self.step, self._rows)
    self._step, cost = compile_step(phase.config, parts, phase.task)
    self._meter = Meter(batches, cost)

  def advance(self) -> None:
    """Dispatches the next step, then writes the metrics of the one before it."""
    if self.step == self._phase.until:
      self.drain()
      self._enter_phase()
    sharding, batch_size = self._parts.rules.batch(), self._phase.config.batch_size
    local = self._meter.next_batch()
    batch = {name: from_local_rows(sharding, self._rows, x, batch_size) for name, x in local.items()}
    previous = self._pending
    self.state, metrics = self._step(self.state, batch)
    self.step += 1
    self._pending = (self.step, metrics)
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
    if not math.isfinite(values["loss"]):
      raise UserError(
        f"train/loss is {values['loss']} at step {step}; nothing was saved since step {self._saved}; lower the"
        " learning rate or clip gradients (--config.clip_norm=1.0) and run the same command again"
      )
    if step % self.config.log_every == 0 or step == self.total_steps:
      self._writer.write(step, {f"train/{name}": value for name, value in values.items()})

  def evaluate(self) -> None:
    """Runs every evaluator on the current parameters and writes the results."""
    self.drain()
    since = time.perf_counter()
    metrics, samples = {}, []
    for group, found in self._evaluation(self.state.params).items():
      values = found.metrics | {"seconds": found.seconds}
      metrics |= {f"eval/{group}/{metric}": value for metric, value in values.items()}
      samples += [sample | {"task": group, "step": self.step} for sample in found.samples]
    if metrics:
      self._writer.write(self.step, metrics)
    if samples and self._primary:
      workdirs.write_lines(self.workdir / "samples", f"{self.step:09d}.jsonl", samples)
    if self._meter:
      self._meter.away(since)

  def save(self) -> None:
    """Starts a checkpoint of this step, after putting all metrics up to it on disk."""
    self.drain()
    since = time.perf_counter()
    self._writer.flush()
    self._checkpoints.save(self.step, to_tree(self.state), self._identity)
    self._saved = self.step
    self._meter.away(since)

  def evaluated(self) -> bool:
    """Whether the metrics hold an evaluation of this step; the same answer in all processes."""
    rows = read_metrics(self.workdir) if self._primary else []
    return _any_process(any(row["step"] == self.step and any(n.startswith("eval/") for n in row) for row in rows))

  def finish(self) -> None:
    """Evaluates the last step, waits for its checkpoint and writes the report."""
    self.drain()
    if not self.evaluated():
      self.evaluate()
    self._checkpoints.wait()
    self._writer.flush()
    if self._primary:
      process.say(f"report: {write_report(self.workdir)}")

  def wait_for_save(self) -> None:
    self._checkpoints.wait()

  def __enter__(self) -> "Run":
    return self

  def __exit__(self, *_) -> None:
    try:
      self._checkpoints.close()
    finally:
      self._writer.close()
      if self._primary:
        self._lock.close()

  def _check_workdir(self) -> list[str]:
    """Compares the workdir with this config, in all processes alike. Returns the allowed changes."""
    saved = workdirs.read(self.workdir)
    changes = [] if saved is None else workdirs.check(saved, self._identity, self.workdir)
    distributed.agree(
      {
        "config": config_lib.digest(self.config),
        "data and vocabulary": json.dumps(self._identity["fingerprints"]),
        "code version": distributed.code_version(),
        "jax version": jax.__version__,
      }
    )
    return changes

  def _restore_or_init(self) -> tuple[TrainState, int]:
    abstract = self._parts.state
    restored = self._checkpoints.restore(to_tree(abstract))
    if restored is None:
      process.say(f"new run in {self.workdir}")
      return init_state(self._parts.make_model, self._parts.optimizer, abstract, self.config.seed), 0
    step, tree, metadata = restored
    workdirs.check(metadata, self._identity, self.workdir / "checkpoints" / str(step))
    phases.check_past(metadata, self.config, step, self.workdir)
    if step < self.total_steps:
      process.say(f"resuming {self.workdir} from step {step} of {self.total_steps}")
    return from_tree(tree, abstract), step

  def _record(self, changes: list[str]) -> None:
    """Locks the workdir and records this start: the config, the vocabulary, the environment."""
    if not self._primary:
      return
    self._lock = workdirs.hold(self.workdir)
    parts, phase = self._parts, self._phases[-1]
    batch = assembly.abstract_batch(phase.config, parts, phase.task)
    found = environment() | attention_cores(parts.model, batch, parts.rules)
    workdirs.write(self.workdir, workdirs.FILE, self._identity)
    workdirs.write(self.workdir, "environment.json", found)
    workdirs.add_to_history(self.workdir, self.step, self._identity, changes, found)
    self._phases[-1].task.vocabulary.save(self.workdir / "vocabulary")


def _any_process(value: bool) -> bool:
  """Whether `value` is true in any process; the same answer in all."""
  if jax.process_count() == 1:
    return value
  from jax.experimental import multihost_utils

  return bool(multihost_utils.process_allgather(np.array([value])).any())
