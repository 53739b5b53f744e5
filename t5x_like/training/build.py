"""Build the parts of a train step from a resolved config."""

import dataclasses
from collections.abc import Callable

import jax
import optax
from flax import nnx
from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like import slots, tunings
from t5x_like.abstract_model import build_model, build_objective, build_tuning
from t5x_like.errors import UserError
from t5x_like.nn import params, remat
from t5x_like.parallel.rules import Rules
from t5x_like.training.ema import with_average
from t5x_like.training.guard import GUARDS, Guard, skip_refused_updates
from t5x_like.training.optimizer import OPTIMIZERS, update_layerwise, with_upper_bounds
from t5x_like.training.schedule import SCHEDULES, Schedule
from t5x_like.training.state import TrainState, abstract_state

REFERENCE = "reference/"  # begins the names of a reference model's parameters


@dataclasses.dataclass(frozen=True)
class Parts:
  """The parts of a train step.

  Attributes:
    model: the abstract model.
    make_model: `key -> model`; makes a concrete one.
    objective: `(model, batch, key) -> (loss sum, sums)`.
    optimizer: the optimizer of the trained parameters.
    schedule: the learning rate by step.
    rules: the mesh and the sharding rules.
    state: the abstract state, with shardings.
    guard: the policy for updates that are refused.
    trained: names of the trained parameters; None if all are trained.
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
  rules = Rules.from_config(config, devices)
  for name, _, _, batch_size in config_lib.phases_in_order(config):
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
  _check_guard_reach(config, guard)
  state = abstract_state(model, optimizer, rules)
  if guard.skips:
    optimizer = skip_refused_updates(optimizer)
  if config.optimizer.get("offload", False):
    from t5x_like.training import offload

    optimizer, state = offload.offload_optimizer_state(optimizer, state, rules.mesh)
  return Parts(model, make_model, objective, optimizer, schedule, rules, state, guard, trained)


def _optimizer(config: ConfigDict, schedule: Schedule, named: dict):
  """Return (the optimizer of the trained parameters, their names or None for all).

  Args:
    named: the model's parameters by name.
  """
  arguments = {
    key: value
    for key, value in config.optimizer.to_dict().items()
    if not hasattr(config_lib.OptimizerMemory, key)
  }
  optimizer = slots.make("config.optimizer", arguments, OPTIMIZERS, schedule=schedule)
  optimizer = update_layerwise(optimizer, {name: p.axes for name, p in named.items()})
  if config.clip_norm:
    optimizer = optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)
  tuning = build_tuning(config)
  upper_bounds = {name: p.most for name, p in named.items() if hasattr(p, "most")}
  optimizer = with_upper_bounds(tuning.scale_rates(optimizer, named), upper_bounds)
  fixed_steps = {name: p.step for name, p in named.items() if hasattr(p, "step")}
  if fixed_steps:
    from t5x_like.training.sign_steps import with_sign_steps

    optimizer = with_sign_steps(optimizer, fixed_steps)
  optimizer = with_average(optimizer, schedule, config.optimizer)
  trained = []
  for name in tuning.trained_names(named):
    if not name.startswith(REFERENCE) and not hasattr(named[name], "fixed"):
      trained.append(name)
  if len(trained) == len(named):
    return optimizer, None
  return tunings.freeze_others(optimizer, trained), frozenset(trained)


def _check_guard_reach(config: ConfigDict, guard: Guard) -> None:
  """Check that checkpoints reach back as far as the guard goes; raise UserError."""
  max_steps_back = (config.checkpoint.keep_last - 1) * config.checkpoint.every
  if guard.steps > max_steps_back:
    raise UserError(
      f"config.guard.steps: found {guard.steps}, expected at most {max_steps_back}, "
      "(checkpoint.keep_last - 1) * checkpoint.every, as a step that far back must still be there; "
      "raise --config.checkpoint.keep_last"
    )


def abstract_batch(config: ConfigDict, rules: Rules, task) -> dict[str, jax.ShapeDtypeStruct]:
  """Return shapes, dtypes and sharding of the global batch of a task."""
  sharding = rules.batch()
  batch = {}
  for name, feature in task.features.items():
    shape = (config.batch_size, *feature.shape)
    batch[name] = jax.ShapeDtypeStruct(shape, feature.dtype, sharding=sharding)
  return batch
