"""Build the parts of a step from a resolved config: mesh, rules, model, optimizer, objective and
abstract state."""

import dataclasses
from collections.abc import Callable

import jax
import optax
from flax import nnx
from ml_collections import ConfigDict

import t5x_like.models
import t5x_like.objectives
from t5x_like import config as config_lib
from t5x_like import slots
from t5x_like.errors import UserError
from t5x_like.nn import params, remat
from t5x_like.parallel.rules import Rules
from t5x_like.training import tunings
from t5x_like.training.ema import with_average
from t5x_like.training.guard import GUARDS, Guard, skip_refused_updates
from t5x_like.training.optimizer import OPTIMIZERS, update_layerwise, with_upper_bounds
from t5x_like.training.schedule import SCHEDULES, Schedule
from t5x_like.training.state import TrainState, abstract_state

REFERENCE = "reference/"  # begins the names of a reference model's parameters
_ADAPTERS = 1  # folded into the key of the model's parameters


@dataclasses.dataclass(frozen=True)
class Parts:
  """The parts of a step.

  Attributes:
    model: the abstract model; `make_model(key)` makes a concrete one.
    state: the abstract state, with shardings.
    trained: names of the parameters that are trained, None if all are.
  """

  model: nnx.Module
  make_model: Callable[[jax.Array], nnx.Module]
  objective: Callable
  optimizer: optax.GradientTransformation
  schedule: Schedule
  rules: Rules
  state: TrainState
  guard: Guard
  trained: frozenset[str] | None = None


def build_parts(config: ConfigDict, devices: list[jax.Device] | None = None) -> Parts:
  """Build all parts but the data, without allocating anything.

  Args:
    config: resolved.
    devices: of the mesh; None takes all.
  Raises:
    UserError: the mesh does not fit the devices, or a parameter or a phase's batch does not divide
      over it.
  """
  phases = config_lib.phases_in_order(config)
  rules = Rules.from_config(config, devices)
  for name, _, _, batch_size in phases:
    rules.check_batch(batch_size, config.accumulation_steps, config_lib.batch_key(name))
  model, make_model = build_model(config)
  named = params.named_params(model)
  if remat.build_remat(config.model.get("remat", "none")).offload:
    from t5x_like.training import offload

    offload.check_host_memory("config.model.remat", rules.mesh)
  schedule = slots.make("config.schedule", config.schedule, SCHEDULES)
  optimizer, trained = _optimizer(config, schedule, named)
  objective = build_objective(config)
  if objective.uses_batch_negatives and config.accumulation_steps > 1:
    raise UserError(
      f"config.accumulation_steps: found {config.accumulation_steps}, but {config.objective.name} "
      "compares all rows of a batch with one another; set it to 1 and "
      f"--config.objective.chunks={config.accumulation_steps}"
    )
  guard = slots.make("config.guard", config.guard, GUARDS)
  check_guard_reach(config, guard)
  state = abstract_state(model, optimizer, rules)
  if guard.skips:
    optimizer = skip_refused_updates(optimizer)
  if config.optimizer.get("offload", False):
    from t5x_like.training import offload

    optimizer, state = offload.offload_optimizer_state(optimizer, state, rules.mesh)
  return Parts(model, make_model, objective, optimizer, schedule, rules, state, guard, trained)


def build_objective(config: ConfigDict) -> Callable:
  """Return the objective; raise UserError if it lacks a declaration."""
  objective = slots.make("config.objective", config.objective, t5x_like.objectives, "Objective")
  t5x_like.objectives.check_declarations(config.objective.name, objective)
  return objective


def build_model(config: ConfigDict):
  """Return (the abstract model, `key -> model`), with the adapters and the reference that the
  config asks for."""
  tune = slots.make("config.tuning", config.tuning, tunings, "make")
  objective = build_objective(config)

  from t5x_like.training.tunings import lora

  def bare(key, slot="model", values=config.model):
    return slots.make(f"config.{slot}", values, t5x_like.models, "Model", rngs=nnx.Rngs(params=key))

  def make_model(key):
    model = tune.adapt(bare(key), jax.random.fold_in(key, _ADAPTERS), config.model)
    if objective.teacher:
      model.reference = bare(key, "teacher.model", config.teacher.model)
    elif objective.needs_reference and not lora.alone(model, tune):
      model.reference = bare(key)
    return objective.extend_model(model, key)

  return jax.eval_shape(make_model, jax.random.key(0)), make_model


def _optimizer(config: ConfigDict, schedule: Schedule, named: dict):
  """Return (the optimizer of the parameters that are trained, their names or None for all)."""
  arguments = {
    k: v
    for k, v in config.optimizer.to_dict().items()
    if not hasattr(config_lib.OptimizerMemory, k)
  }
  inner = slots.make("config.optimizer", arguments, OPTIMIZERS, schedule=schedule)
  optimizer = update_layerwise(inner, {name: p.axes for name, p in named.items()})
  if config.clip_norm:
    optimizer = optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)
  tune = slots.make("config.tuning", config.tuning, tunings, "make")
  optimizer = with_upper_bounds(
    tune.scale_rates(optimizer, named), {n: p.most for n, p in named.items() if hasattr(p, "most")}
  )
  if steps := {name: p.step for name, p in named.items() if hasattr(p, "step")}:
    from t5x_like.training.sign_steps import with_sign_steps

    optimizer = with_sign_steps(optimizer, steps)
  optimizer = with_average(optimizer, schedule, config.optimizer)
  trained = [
    n
    for n in tune.trained_names(named)
    if not (n.startswith(REFERENCE) or hasattr(named[n], "fixed"))
  ]
  if len(trained) == len(named):
    return optimizer, None
  return tunings.freeze_others(optimizer, trained), frozenset(trained)


def check_guard_reach(config: ConfigDict, guard: Guard) -> None:
  """Check that a step to go back to is always kept; raise UserError."""
  max_steps_back = (config.checkpoint.keep_last - 1) * config.checkpoint.every
  if guard.steps > max_steps_back:
    raise UserError(
      f"config.guard.steps: found {guard.steps}, expected at most {max_steps_back}, (checkpoint.keep_last - "
      "1) * checkpoint.every, as a step that far back must still be there; raise "
      "--config.checkpoint.keep_last"
    )


def abstract_batch(config: ConfigDict, rules: Rules, task) -> dict[str, jax.ShapeDtypeStruct]:
  """Return shapes, dtypes and sharding of the global batch of a task."""
  return {
    name: jax.ShapeDtypeStruct(
      (config.batch_size, *feature.shape), feature.dtype, sharding=rules.batch()
    )
    for name, feature in task.features.items()
  }
