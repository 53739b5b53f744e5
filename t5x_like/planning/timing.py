"""Time a compiled train step on the devices of this machine, with a batch of ones."""

import statistics
import time

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from t5x_like.training.build import Parts
from t5x_like.training.state import init_state

_WARM_UP_STEPS = 2  # they allocate buffers
_TIMED_STEPS = 9


def time_step(
  config: ConfigDict,
  parts: Parts,
  step: jax.stages.Compiled,
  batch: dict[str, jax.ShapeDtypeStruct],
) -> float:
  """Return the median seconds of `_TIMED_STEPS` steps from initialised weights.

  The time does not depend on the values of the batch, except if a router of experts or an attention
  core skips work that depends on them.

  Args:
    step: `(state, batch) -> (state, metrics)`; donates the state.
    batch: shapes and shardings.
  """
  state = init_state(parts.make_model, parts.optimizer, parts.state, config.seed)
  ones = {}
  for name, x in batch.items():
    ones[name] = jax.device_put(jnp.ones(x.shape, x.dtype), x.sharding)
  seconds = []
  for _ in range(_WARM_UP_STEPS + _TIMED_STEPS):
    start = time.perf_counter()
    state, metrics = step(state, ones)
    jax.block_until_ready(metrics)
    seconds.append(time.perf_counter() - start)
  return statistics.median(seconds[_WARM_UP_STEPS:])
