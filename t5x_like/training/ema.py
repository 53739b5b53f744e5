"""Averages of the weights, beside any optimizer: `config.optimizer.ema = 0.9999`, or `schedule_free
= 0.9`."""

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax.contrib import ScheduleFreeState

from t5x_like.errors import UserError
from t5x_like.training.schedule import Schedule

Named = dict[str, jax.Array]
# names of its tensors in a checkpoint
COUNT = "ema/count"
MEAN = "ema/mean/"
_SCALAR = "(ema|schedule_free)/[^/]+"
NEXT = "schedule_free/step_count"
B1 = "schedule_free/b1"
Z = "schedule_free/z/"


class EmaState(NamedTuple):
  """Attributes:
  inner_state: of the optimizer.
  count: int32 scalar, the updates averaged; before the first the mean means nothing.
  mean: float32 arrays by name of parameter.
  """

  inner_state: Any
  count: jax.Array
  mean: Named


def with_average(
  optimizer: optax.GradientTransformation, schedule: Schedule, values
) -> optax.GradientTransformation:
  """Return the optimizer with the average that `config.optimizer`, `values`, asks for, if any.

  Raises:
    UserError: it asks for two, or for `schedule_free` beside momentum.
  """
  if not (b1 := values.get("schedule_free")):
    return with_ema(optimizer, values.ema, values.ema_warmup) if values.get("ema") else optimizer
  for key in ("ema", "b1", "momentum"):
    if values.get(key):
      raise UserError(
        f"config.optimizer.{key}: found {values[key]}, expected 0 with schedule_free, which takes "
        f"its place; set --config.optimizer.{key}=0"
      )
  return with_schedule_free(optimizer, schedule, b1)


def with_ema(
  optimizer: optax.GradientTransformation, max_decay: float, warmup: bool = False
) -> optax.GradientTransformationExtraArgs:
  """Return the optimizer; it also keeps `mean = decay * mean + (1 - decay) * new weights`, from the
  first on.

  The decay is `most`; with `warmup`, at most `1 - (1 + n)^(-2/3)` after n updates (timm's
  `ModelEmaV3`), so the first weights leave no trace, and the mean is over the last n^(2/3) updates.
  """

  def init(params: Named) -> EmaState:
    return EmaState(
      optimizer.init(params), jnp.zeros([], jnp.int32), jax.tree.map(jnp.copy, params)
    )

  def update(grads: Named, state: EmaState, params: Named, **extra):
    updates, inner = optimizer.update(grads, state.inner_state, params, **extra)
    # weights may be loaded
    before = jax.tree.map(lambda m, p: jnp.where(state.count == 0, p, m), state.mean, params)
    new = optax.apply_updates(params, updates)
    decay = jnp.minimum(max_decay, 1.0 - (1.0 + state.count) ** (-2 / 3)) if warmup else max_decay
    mean = jax.tree.map(lambda m, p: decay * m + (1.0 - decay) * p, before, new)
    return updates, EmaState(inner, optax.safe_increment(state.count), mean)

  return optax.GradientTransformationExtraArgs(init, update)


def with_schedule_free(
  optimizer: optax.GradientTransformation, schedule: Schedule, b1: float
) -> optax.GradientTransformationExtraArgs:
  """Return the optimizer made schedule-free by optax (Defazio et al. 2024, arXiv:2405.15682,
  equations 2 to 4).

  It moves `z`, kept beside the weights y = (1 - b1) z + b1 x, at which gradients are taken. x is
  the mean of all z, by the squares of the greatest rates so far, and is evaluated.
  """

  def at(rate) -> optax.GradientTransformationExtraArgs:
    return optax.contrib.schedule_free(optimizer, rate, b1)

  def update(grads: Named, state: ScheduleFreeState, params: Named, *, step, **extra):
    # weights may be loaded
    z = jax.tree.map(lambda z, p: jnp.where(state.step_count == 1, p, z), state.z, params)
    return at(schedule(step)).update(grads, state._replace(z=z), params, step=step, **extra)

  return optax.GradientTransformationExtraArgs(at(0.0).init, update)


def evaluation_weights(state, averaged: bool = True) -> Named:
  """Return the weights of a `TrainState` to evaluate: the mean of those that are trained, the
  others as they are.

  Args:
    averaged: False returns the weights of the last step, as does a state without a mean.
  """
  kept = [one for one in jax.tree.leaves(state.opt_state, is_leaf=_is_mean) if _is_mean(one)]
  if not averaged or not kept:
    return state.params
  (own,) = kept
  tensors = {f"params/{name}": x for name, x in state.params.items()}
  if isinstance(own, EmaState):
    tensors |= {COUNT: own.count} | {f"{MEAN}{name}": x for name, x in own.mean.items()}
  else:
    tensors |= {NEXT: own.step_count, B1: own.b1} | {f"{Z}{name}": x for name, x in own.z.items()}
  # the optimizer's may be in the hosts' memory
  place = {name: x.sharding for name, x in state.params.items()}
  return state.params | {
    name: jax.device_put(x, place[name]) for name, x in (averaged_params(tensors) or {}).items()
  }


def averaged_tensors(saved: dict[str, Any], abstract_params: dict[str, Any]) -> dict[str, Any]:
  """Return the tensors of a checkpoint that hold the averaged weights.

  Args:
    saved: the manifest's entries of the tensors in the checkpoint, by name.
    wanted: abstract parameters by name.
  Returns:
    Abstract tensors by name in the checkpoint: `ema/mean/…` where there is one, else `params/…`,
    with their `schedule_free/z/…` where there is one; and the scalars that belong to these.
  """
  names = {
    name: f"{MEAN}{name}" if f"{MEAN}{name}" in saved else f"params/{name}"
    for name in abstract_params
  }
  any_sharding = next(iter(abstract_params.values())).sharding
  scalar = jax.sharding.NamedSharding(any_sharding.mesh, jax.sharding.PartitionSpec())
  scalars = {
    key: jax.ShapeDtypeStruct((), jnp.dtype(one["dtype"]), sharding=scalar)
    for key, one in saved.items()
    if re.fullmatch(_SCALAR, key)
  }
  z_tensors = {f"{Z}{name}": x for name, x in abstract_params.items() if f"{Z}{name}" in saved}
  return {names[name]: x for name, x in abstract_params.items()} | z_tensors | scalars


def averaged_params(tensors: dict[str, Any]) -> Named | None:
  """Return parameters by name from the tensors that `chosen` named; None if no update has been
  averaged."""
  if int(tensors.get(COUNT, 1)) == 0 or int(tensors.get(NEXT, 2)) == 1:
    return None
  z_params = {name.removeprefix(Z): x for name, x in tensors.items() if name.startswith(Z)}
  weights = {
    name.removeprefix("params/"): x for name, x in tensors.items() if name.startswith("params/")
  }
  if z_params:
    z_params = {name: jax.device_put(x, weights[name].sharding) for name, x in z_params.items()}
    weights |= _mean({name: weights[name] for name in z_params}, z_params, tensors[B1])
  return weights | {
    name.removeprefix(MEAN): x for name, x in tensors.items() if name.startswith(MEAN)
  }


@jax.jit
def _mean(weights: Named, z: Named, b1: jax.Array) -> Named:
  return optax.contrib.schedule_free_eval_params(
    ScheduleFreeState(b1, None, None, None, None, z), weights
  )


def _is_mean(x: Any) -> bool:
  return isinstance(x, EmaState | ScheduleFreeState)
