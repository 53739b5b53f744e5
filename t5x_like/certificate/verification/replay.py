"""Compute steps of a run again from its checkpoints, and compare them with the chain.

If devices, versions, flags and layout are the same as in the run, every bit must be equal.
Otherwise losses may differ by a bound, since sums are rounded in another order.
"""

import dataclasses
import random
from collections.abc import Callable, Sequence

import jax

from t5x_like.certificate.digests import digest_metrics, float_bits
from t5x_like.certificate.history import (
  CODE,
  STATE,
  Break,
  Start,
  Step,
  compare_losses,
  relative_difference,
)
from t5x_like.certificate.recorder import compiler_flags
from t5x_like.certificate.verification.batches import BatchSource
from t5x_like.certificate.verification.certified_run import CertifiedRun
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.parallel.rules import from_local_rows, local_rows
from t5x_like.runtime import process
from t5x_like.training.build import build_parts, build_phases
from t5x_like.training.phases import Phase, phase_at
from t5x_like.training.restoring import digest_state, tensors_to_restore
from t5x_like.training.run import compile_phase
from t5x_like.training.state import TrainState, from_tree, init_state

_CORE = "_core"  # ends the names of attention cores in an environment, which the config decides


@dataclasses.dataclass
class ReplayResult:
  """The steps that were computed again.

  Attributes:
    bases: the checkpoints that they were computed from; 0 is the initial state.
    num_equal: steps with equal bits.
    num_steps: all.
    num_states: saved states that were reached again with equal bits.
    max_difference: the largest relative difference of a loss.
    must_be_equal: whether all were computed where bits must be equal.
  """

  bases: list[int] = dataclasses.field(default_factory=list)
  num_equal: int = 0
  num_steps: int = 0
  num_states: int = 0
  max_difference: float = 0.0
  must_be_equal: bool = True


def choose_steps(run: CertifiedRun, kept_steps: Sequence[int], count: int) -> dict[int, list[int]]:
  """Choose steps at random among those that can be computed again.

  These are the steps after a kept checkpoint, or after the initial state, up to the next start that
  changed the config.

  Args:
    kept_steps: the steps of the checkpoints that the chain covers.
    count: how many steps to choose.
  Returns:
    The chosen steps, ascending, by the step of the state to begin from.
  """
  bases = set(kept_steps) | _initial_base(run)
  base_of_step = {}
  base = None
  configs = None
  for number, step in run.history.steps.items():
    if number - 1 in bases:
      base = number - 1
      configs = step.lineage.configs
    if base is not None and step.lineage.configs == configs:
      base_of_step[number] = base
  numbers = list(base_of_step)
  chosen = random.SystemRandom().sample(numbers, min(count, len(numbers)))
  steps_by_base: dict[int, list[int]] = {}
  for number in sorted(chosen):
    steps_by_base.setdefault(base_of_step[number], []).append(number)
  return steps_by_base


def _initial_base(run: CertifiedRun) -> set[int]:
  """Return {0} if the initial state follows from the config alone, else an empty set."""
  begins_from_weights = run.identity.get("init") or run.identity.get("teacher")
  return set() if run.history.begins or begins_from_weights else {0}


def replay(
  run: CertifiedRun,
  steps_by_base: dict[int, list[int]],
  report_progress: Callable[[int], None],
) -> ReplayResult:
  """Compute the steps after each base up to the last chosen one, and compare all of them.

  Args:
    steps_by_base: see `choose_steps`.
    report_progress: called with the number of steps computed so far.
  Raises:
    Break: at the first step that comes out differently.
    UserError: the config of a start is lost, or its mesh does not fit the devices here.
  """
  result = ReplayResult()
  replayers: dict[tuple[str, str], Replayer] = {}
  for base, numbers in sorted(steps_by_base.items()):
    start = run.history.steps[numbers[0]].lineage.last
    key = (start.config, str(start.environment.get("devices")))
    if key not in replayers:
      identity = run.identity_of(start.config)
      if identity is None:
        process.log(f"steps after {base}: the config of their start is lost, so they are left out")
        continue
      replayers[key] = Replayer(run, identity, start)
    result.bases.append(base)
    replayers[key].replay(base, numbers[-1], result, report_progress)
  return result


class Replayer:
  """Compute the steps of a run under one of its configs.

  Args:
    identity: the config.
    start: a start with this config.
  """

  def __init__(self, run: CertifiedRun, identity: dict, start: Start):
    self._run = run
    config = run.config(identity)
    num_devices = start.environment.get("devices")
    available = jax.devices()
    if not isinstance(num_devices, int) or not 0 < num_devices <= len(available):
      num_devices = 1
      config.mesh = {"data": -1}
    self._environment = describe_environment(num_devices)
    self._config = config
    self._parts = build_parts(config, available[:num_devices])
    self._phases = build_phases(config, process.build_task)
    self._source = BatchSource(self._phases, config)
    self._compiled: dict[str, Callable] = {}

  def replay(
    self, base: int, last: int, result: ReplayResult, report_progress: Callable[[int], None]
  ) -> None:
    """Compute the steps after a base up to `last`; add what was compared to the result."""
    history = self._run.history
    state = self._state(base)
    is_exact = True  # until a step starts from a state that was rounded differently
    for number in range(base + 1, last + 1):
      recorded = history.steps[number]
      is_exact = is_exact and self._computes_like(recorded.lineage.last)
      state, metrics = self._compute(state, recorded.batch_index)
      self._compare(number, recorded, metrics, is_exact, result)
      if number in history.saves and is_exact:
        self._compare_state(number, state)
        result.num_states += 1
      report_progress(result.num_steps)

  def _state(self, base: int) -> TrainState:
    """Return the state of a checkpoint, or of a new run for base 0."""
    parts = self._parts
    with Checkpoints(self._run.checkpoint_directory) as checkpoints:
      if base in checkpoints.steps():
        is_fresh = self._config.checkpoint.fresh_optimizer

        def template(saved: dict[str, dict]) -> dict:
          return tensors_to_restore(saved, parts.state, is_fresh)

        _, tree, _ = checkpoints.restore(template, base)
        return from_tree(tree, parts.state, parts.optimizer)
    state = init_state(parts.make_model, parts.optimizer, parts.state, self._config.seed)
    if self._computes_like(self._run.history.saves[0].lineage.last):
      self._compare_state(0, state)
    return state

  def _computes_like(self, start: Start) -> bool:
    """Return whether steps here have the bits of that start."""
    cores = {name: x for name, x in start.environment.items() if name.endswith(_CORE)}
    return start.computes_like(self._environment | cores)

  def _compute(self, state: TrainState, index: int) -> tuple[TrainState, dict[str, float]]:
    """Return the state after a step on the batch of an index, and its metrics."""
    phase = phase_at(self._phases, index)
    sharding = self._parts.rules.batch()
    batch_size = phase.config.batch_size
    rows = local_rows(sharding, batch_size)
    batch = from_local_rows(sharding, rows, self._source.batch(index), batch_size)
    state, metrics = self._step(phase)(state, batch)
    return state, {name: float(x) for name, x in jax.device_get(metrics).items()}

  def _step(self, phase: Phase) -> Callable:
    if phase.name not in self._compiled:
      self._compiled[phase.name], _ = compile_phase(self._parts, phase)
    return self._compiled[phase.name]

  def _compare(
    self,
    number: int,
    recorded: Step,
    metrics: dict[str, float],
    is_exact: bool,
    result: ReplayResult,
  ) -> None:
    """Compare a computed step with its record."""
    computed = dataclasses.replace(
      recorded,
      loss=float_bits(metrics["loss"]),
      gradient_norm=float_bits(metrics["gradient_norm"]),
      metrics=digest_metrics(metrics),
    )
    exactness = "bits" if is_exact else "bound"
    difference = compare_losses(recorded, computed, exactness, self._run.bound)
    if difference and recorded.refused:
      raise Break(
        number,
        CODE,
        f"its update was left out ({recorded.refused}), and it was recorded, and is computed from "
        f"the checkpoint, with {difference}: memory or hardware of the run was at fault",
      )
    if difference:
      raise Break(
        number, CODE, f"it was recorded, and is computed from the checkpoint, with {difference}"
      )
    result.num_steps += 1
    result.num_equal += computed.metrics == recorded.metrics
    result.must_be_equal &= is_exact
    loss_difference = relative_difference(recorded.loss, computed.loss)
    result.max_difference = max(result.max_difference, loss_difference)

  def _compare_state(self, number: int, state: TrainState) -> None:
    digest = digest_state(state)
    expected = self._run.history.saves[number].state
    if digest != expected:
      raise Break(
        number, STATE, f"the run had the state {expected[:12]}, and {digest[:12]} is computed"
      )


def describe_environment(num_devices: int) -> dict:
  """Return what a start records of its environment, for this process and its first devices."""
  environment = process.describe_environment() | {"xla_flags": compiler_flags()}
  return environment | {"devices": num_devices, "devices_per_process": num_devices}
