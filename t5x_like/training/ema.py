"""An exponential moving average of the weights, kept beside any optimizer: `config.optimizer.ema = 0.9999`."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Named = dict[str, jax.Array]
COUNT, MEAN = "ema/count", "ema/mean/"  # names of its tensors in a checkpoint


class EmaState(NamedTuple):
  """Attributes:
  inner_state: of the optimizer.
  count: int32 scalar, the updates averaged; before the first the mean means nothing.
  mean: float32 arrays by name of parameter.
  """

  inner_state: Any
  count: jax.Array
  mean: Named


def averaging(optimizer: optax.GradientTransformation, decay: float) -> optax.GradientTransformationExtraArgs:
  """Return the optimizer; it also keeps `mean = decay * mean + (1 - decay) * new weights`, from the first on."""

  def init(params: Named) -> EmaState:
    return EmaState(optimizer.init(params), jnp.zeros([], jnp.int32), jax.tree.map(jnp.copy, params))

  def update(grads: Named, state: EmaState, params: Named, **extra):
    updates, inner = optimizer.update(grads, state.inner_state, params, **extra)
    before = jax.tree.map(lambda m, p: jnp.where(state.count == 0, p, m), state.mean, params)  # weights may be loaded
    new = optax.apply_updates(params, updates)
    mean = jax.tree.map(lambda m, p: decay * m + (1.0 - decay) * p, before, new)
    return updates, EmaState(inner, optax.safe_increment(state.count), mean)

  return optax.GradientTransformationExtraArgs(init, update)


def evaluated(state, averaged: bool = True) -> Named:
  """Return the weights of a `TrainState` to evaluate: the mean of those that are trained, the others as they are.

  Args:
    averaged: False returns the weights of the last step.
  """
  own = next(one for one in jax.tree.leaves(state.opt_state, is_leaf=_is_ema) if _is_ema(one))
  if not averaged or int(own.count) == 0:
    return state.params
  return state.params | {name: jax.device_put(x, state.params[name].sharding) for name, x in own.mean.items()}


def chosen(saved: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
  """Return the tensors of a checkpoint that hold the averaged weights.

  Args:
    saved: the tensors in the checkpoint by name.
    wanted: abstract parameters by name.
  Returns:
    Abstract tensors by name in the checkpoint: `ema/mean/…` where there is one, else `params/…`, and the count.
  """
  names = {name: f"{MEAN}{name}" if f"{MEAN}{name}" in saved else f"params/{name}" for name in wanted}
  any_sharding = next(iter(wanted.values())).sharding
  scalar = jax.sharding.NamedSharding(any_sharding.mesh, jax.sharding.PartitionSpec())
  count = {COUNT: jax.ShapeDtypeStruct((), jnp.int32, sharding=scalar)} if COUNT in saved else {}
  return {names[name]: x for name, x in wanted.items()} | count


def named(found: dict[str, Any]) -> Named | None:
  """Return parameters by name from the tensors that `chosen` named; None if no update has been averaged."""
  if COUNT in found and int(found[COUNT]) == 0:
    return None
  return {name.removeprefix(MEAN).removeprefix("params/"): x for name, x in found.items() if name != COUNT}


def _is_ema(x: Any) -> bool:
  return isinstance(x, EmaState)
