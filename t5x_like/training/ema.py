"""Average the weights during training, with any optimizer.

`config.optimizer.ema = 0.9999`, or `schedule_free = 0.9`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax.contrib import ScheduleFreeState

from t5x_like.errors import UserError
from t5x_like.saved_model.averaged_weights import (
  EMA_COUNT,
  EMA_MEAN,
  SCHEDULE_FREE_B1,
  SCHEDULE_FREE_STEP,
  SCHEDULE_FREE_Z,
  NamedArrays,
  averaged_params,
)
from t5x_like.training.schedule import Schedule


class EmaState(NamedTuple):
  """State of an optimizer whose parameters are averaged.

  Attributes:
    inner_state: the state of the optimizer.
    count: int32 scalar, the updates averaged; the mean is undefined before the first.
    mean: float32 arrays by name of parameter.
  """

  inner_state: Any
  count: jax.Array
  mean: NamedArrays


def with_average(
  optimizer: optax.GradientTransformation, schedule: Schedule, values
) -> optax.GradientTransformation:
  """Return the optimizer with the average of weights that `config.optimizer` asks for, if any.

  Args:
    values: `config.optimizer`.
  Raises:
    UserError: it asks for two averages, or for `schedule_free` and momentum.
  """
  b1 = values.get("schedule_free")
  if not b1 and values.get("ema"):
    return with_ema(optimizer, values.ema, values.ema_warmup)
  if not b1:
    return optimizer
  for key in ("ema", "b1", "momentum"):
    if values.get(key):
      raise UserError(
        f"config.optimizer.{key}: found {values[key]}, expected 0 with schedule_free, which "
        f"replaces it; set --config.optimizer.{key}=0"
      )
  return with_schedule_free(optimizer, schedule, b1)


def with_ema(
  optimizer: optax.GradientTransformation, max_decay: float, warmup: bool = False
) -> optax.GradientTransformationExtraArgs:
  """Return an optimizer that also keeps an exponential mean of the new weights.

  `mean = decay * mean + (1 - decay) * new weights`, from the first update on. The decay is
  `max_decay`; with `warmup`, at most `1 - (1 + n)^(-2/3)` after n updates (timm's `ModelEmaV3`), so
  the first weights leave no trace, and the mean is over the last n^(2/3) updates.
  """

  def init(params: NamedArrays) -> EmaState:
    return EmaState(
      optimizer.init(params), jnp.zeros([], jnp.int32), jax.tree.map(jnp.copy, params)
    )

  def update(grads: NamedArrays, state: EmaState, params: NamedArrays, **extra):
    updates, inner = optimizer.update(grads, state.inner_state, params, **extra)
    # Start from the current weights, which may have been loaded after `init`.
    before = jax.tree.map(lambda m, p: jnp.where(state.count == 0, p, m), state.mean, params)
    new = optax.apply_updates(params, updates)
    decay = jnp.minimum(max_decay, 1.0 - (1.0 + state.count) ** (-2 / 3)) if warmup else max_decay
    mean = jax.tree.map(lambda m, p: decay * m + (1.0 - decay) * p, before, new)
    return updates, EmaState(inner, optax.safe_increment(state.count), mean)

  return optax.GradientTransformationExtraArgs(init, update)


def with_schedule_free(
  optimizer: optax.GradientTransformation, schedule: Schedule, b1: float
) -> optax.GradientTransformationExtraArgs:
  """Return the optimizer made schedule-free by optax (Defazio et al. 2024, equations 2 to 4).

  The paper is arXiv:2405.15682. Gradients are taken at the weights y = (1 - b1) z + b1 x, and the
  step moves z, which the state keeps. The evaluated x is the mean of all z, weighted by the squares
  of the greatest rates so far.
  """

  def at_rate(rate) -> optax.GradientTransformationExtraArgs:
    return optax.contrib.schedule_free(optimizer, rate, b1)

  def update(grads: NamedArrays, state: ScheduleFreeState, params: NamedArrays, *, step, **extra):
    # Start from the current weights, which may have been loaded after `init`.
    z = jax.tree.map(lambda z, p: jnp.where(state.step_count == 1, p, z), state.z, params)
    return at_rate(schedule(step)).update(grads, state._replace(z=z), params, step=step, **extra)

  return optax.GradientTransformationExtraArgs(at_rate(0.0).init, update)


def evaluation_weights(state, averaged: bool = True) -> NamedArrays:
  """Return the weights of a `TrainState` to evaluate: the average if the optimizer keeps one.

  Parameters that are not trained have no average, and are returned unchanged.

  Args:
    averaged: False returns the weights of the last step.
  """
  nodes = jax.tree.leaves(state.opt_state, is_leaf=_is_mean)
  means = [node for node in nodes if _is_mean(node)]
  if not averaged or not means:
    return state.params
  (mean_state,) = means
  tensors = {f"params/{name}": x for name, x in state.params.items()}
  if isinstance(mean_state, EmaState):
    tensors[EMA_COUNT] = mean_state.count
    tensors |= {f"{EMA_MEAN}{name}": x for name, x in mean_state.mean.items()}
  else:
    tensors[SCHEDULE_FREE_STEP] = mean_state.step_count
    tensors[SCHEDULE_FREE_B1] = mean_state.b1
    tensors |= {f"{SCHEDULE_FREE_Z}{name}": x for name, x in mean_state.z.items()}
  weights = dict(state.params)
  for name, x in (averaged_params(tensors) or {}).items():
    # An offloaded average is in the hosts' memory.
    weights[name] = jax.device_put(x, weights[name].sharding)
  return weights


def _is_mean(x: Any) -> bool:
  return isinstance(x, EmaState | ScheduleFreeState)
