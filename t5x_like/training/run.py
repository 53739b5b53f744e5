"""A run: the objects of a recipe opened in a workdir, checked, restored and ready to step."""

import json
import math
import pathlib
import time
from collections.abc import Iterator

import jax
import numpy as np
from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.parallel import distributed
from t5x_like.parallel.rules import local_rows, sharding_table
from t5x_like.training import assembly, flops, phases, process
from t5x_like.training import workdir as workdirs
from t5x_like.training.checkpoint import Checkpoints
from t5x_like.training.environment import attention_cores, environment
from t5x_like.training.evaluation import Evaluation
from t5x_like.training.meter import Meter
from t5x_like.training.report import write_report
from t5x_like.training.state import TrainState, from_tree, init_state, shardings, to_tree
from t5x_like.training.step import make_step
from t5x_like.training.writer import MetricsWriter, read_metrics


class Run:
  """Opens a run, resuming it if the workdir holds one.

  Everything that can be refused is refused before the first step: the config, the mesh, the data, the vocabulary, a
  workdir of another config. A context manager; leaving it closes the writer and waits for the last checkpoint.

  Args:
    config: a resolved config (`setup.resolve`).
    workdir: a directory, made if missing.

  Attributes:
    state, step: the state to go on from and its step.
    total_steps: from the config.
  """

  def __init__(self, config: ConfigDict, workdir: str):
    from t5x_like.data import loader  # tensorflow: only where data is read
    from t5x_like.data import task as tasks

    self.config, self.workdir, self.total_steps = config, pathlib.Path(workdir), config.total_steps
    self._primary = process.first()
    parts = self._parts = assembly.build(config)
    rows = local_rows(parts.rules.batch(), config.batch_size)
    self._phases = phases.build(config, lambda values: tasks.build(split=config.train_split, **values))
    task = self._phases[-1].task
    self._evaluation = Evaluation(config, parts.model, parts.objective, parts.rules)
    assembly.check_vocabulary(config, task.vocabulary)
    for phase in self._phases:
      assembly.check_task(config, parts, phase.task)
    self._identity = workdirs.identity(config, task)
    self._identity["fingerprints"] |= {f"data_{phase.name}": phase.task.fingerprint for phase in self._phases[:-1]}
    changes = self._check_workdir()
    process.say(sharding_table(params.named_params(parts.model), parts.rules))
    for change in changes:
      process.say(f"resuming with a changed config: {change}")

    self._checkpoints = Checkpoints(
      self.workdir / "checkpoints", **{k: v for k, v in config.checkpoint.to_dict().items() if k != "every"}
    )
    self.state, self.step = self._restore_or_init()
    self._write_workdir(task)
    self._saved = self.step if self.step else None
    self.finished = self.step >= self.total_steps
    self._writer = MetricsWriter(workdir, resume_step=self.step, total_steps=self.total_steps, primary=self._primary)
    self._pending: tuple[int, dict[str, jax.Array]] | None = None
    self._batches = lambda task: loader.train_batches(
      task, batch_size=config.batch_size, seed=config.seed, start_step=self.step, rows=rows
    )
    self._meter = None
    if self.finished:
      process.say(f"{workdir} is finished at step {self.step}; set --config.total_steps={2 * self.step} to go on")
    else:
      self._enter_phase()

  def _enter_phase(self) -> None:
    """Compiles the step for the phase that this step is in and opens its batches."""
    self._phase = next(phase for phase in self._phases if self.step < phase.until)
    if len(self._phases) > 1:
      process.say(f"phase {self._phase.name} from step {self.step}")
    self._compile(self._phase.task, self._batches(self._phase.task))

  def _compile(self, task, batches: Iterator[dict[str, np.ndarray]]) -> None:
    """Compiles the step for the shapes of the task and says what one step costs."""
    config, parts = self.config, self._parts
    step = make_step(
      parts.model,
      parts.objective,
      parts.optimizer,
      parts.schedule,
      parts.rules,
      seed=config.seed,
      accumulation_steps=config.accumulation_steps,
    )
    sharding = parts.rules.batch()
    abstract = assembly.abstract_batch(config, parts, task)
    self._batch_sharding = sharding
    start = time.perf_counter()
    out = (shardings(parts.state), parts.rules.replicated)
    lowered = jax.jit(step, donate_argnums=0, out_shardings=out).lower(parts.state, abstract)
    self._step = lowered.compile()
    # Whoever compiled faster (from a cache) would give up waiting for the others in the first collective after 30 s.
    distributed.agree({"compiled step": "yes"}, timeout_seconds=3600)
    cost = flops.step_flops(parts.model, parts.objective, abstract)
    peak, source = flops.peak_flops(jax.devices()[0]) if not config.peak_flops else (config.peak_flops, "the config")
    cores = attention_cores(parts.model)
    process.say(
      f"step compiled in {time.perf_counter() - start:.1f} s: {cost / 1e9:,.1f} model GFLOPs;"
      f" {', '.join(f'{place}: {name}'.replace('_', ' ') for place, name in cores.items())};"
      f" MFU against {peak * jax.device_count() / 1e12:,.3f} TFLOP/s ({jax.device_count()} devices, {source})"
    )
    positions = sum(math.prod(x.shape) for n, x in abstract.items() if n.endswith("_input_tokens"))
    self._meter = Meter(batches, tokens_per_step=positions, flops_per_step=cost, peak_flops=peak * jax.device_count())

  def advance(self) -> None:
    """Dispatches the next step, then writes the metrics of the one before it."""
    if self.step == self._phase.until:
      self.drain()
      self._enter_phase()
    batch = {
      name: jax.make_array_from_process_local_data(self._batch_sharding, x, (self.config.batch_size, *x.shape[1:]))
      for name, x in self._meter.next_batch().items()
    }
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
        f"train/loss is {values['loss']} at step {step}; nothing was saved since step {self._saved or 0}; lower the"
        " learning rate or clip gradients (--config.clip_norm=1.0) and run the same command again"
      )
    if step % self.config.log_every == 0 or step == self.total_steps:
      self._writer.write(step, {f"train/{name}": value for name, value in values.items()})

  def evaluate(self) -> None:
    """Runs every evaluator on the present parameters and writes what they find."""
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
    """Starts a checkpoint of this step; metrics up to it are on the disk before it can be."""
    self.drain()
    since = time.perf_counter()
    self._writer.flush()
    self._checkpoints.save(self.step, to_tree(self.state), self._identity)
    self._saved = self.step
    self._meter.away(since)

  def finish(self) -> None:
    """Waits for the last checkpoint and writes the report."""
    self.drain()
    evaluated = any(
      row["step"] == self.step and any(name.startswith("eval/") for name in row)
      for row in (read_metrics(self.workdir) if self._primary else [])
    )
    if not _any_process(evaluated):
      self.evaluate()
    self._checkpoints.wait()
    self._writer.flush()
    if self._primary:
      process.say(f"report: {write_report(self.workdir)}")

  def saved_at(self, step: int) -> bool:
    return self._saved == step

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
    """Compares the workdir with this config, in all processes alike. Returns the changes that are allowed."""
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
    workdirs.check(metadata, self._identity, self._checkpoints_path(step))
    if step < self.total_steps:
      process.say(f"resuming {self.workdir} from step {step} of {self.total_steps}")
    return from_tree(tree, abstract), step

  def _checkpoints_path(self, step: int) -> pathlib.Path:
    return self.workdir / "checkpoints" / str(step)

  def _write_workdir(self, task) -> None:
    if self._primary:
      self._lock = workdirs.hold(self.workdir)
      workdirs.write(self.workdir, workdirs.FILE, self._identity)
      workdirs.write(self.workdir, "environment.json", environment() | attention_cores(self._parts.model))
      task.vocabulary.save(self.workdir / "vocabulary")


def _any_process(value: bool) -> bool:
  """Whether `value` is true in any process; the same answer in all."""
  if jax.process_count() == 1:
    return value
  from jax.experimental import multihost_utils

  return bool(multihost_utils.process_allgather(np.array([value])).any())
