"""Read the averaged weights of a run from its checkpoints; see `training/ema.py`."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import ScheduleFreeState

NamedArrays = dict[str, jax.Array]
# Names of tensors in a checkpoint, and prefixes (with a final slash) of one name per parameter.
# `schedule_free/` is followed by a field of optax's `ScheduleFreeState`.
EMA_COUNT = "ema/count"
EMA_MEAN = "ema/mean/"
SCHEDULE_FREE_STEP = "schedule_free/step_count"
SCHEDULE_FREE_B1 = "schedule_free/b1"
SCHEDULE_FREE_Z = "schedule_free/z/"
_SCALAR_PATTERN = "(ema|schedule_free)/[^/]+"


def averaged_tensors(saved: dict[str, Any], abstract_params: dict[str, Any]) -> dict[str, Any]:
  """Return the tensors of a checkpoint that hold the averaged weights.

  Args:
    saved: the manifest's entries of the checkpoint's tensors, by name.
    abstract_params: the model's abstract parameters by name.
  Returns:
    Abstract tensors by their names in the checkpoint. A parameter is read from `ema/mean/…` if the
    checkpoint has it, else from `params/…`, and its `schedule_free/z/…` is read too. The scalars of
    the averages, such as the number of averaged updates, are included.
  """
  tensors = {}
  for name, x in abstract_params.items():
    mean_name = f"{EMA_MEAN}{name}"
    if mean_name in saved:
      tensors[mean_name] = x
    else:
      tensors[f"params/{name}"] = x
  for name, x in abstract_params.items():
    if f"{SCHEDULE_FREE_Z}{name}" in saved:
      tensors[f"{SCHEDULE_FREE_Z}{name}"] = x
  mesh = next(iter(abstract_params.values())).sharding.mesh
  replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  for key, entry in saved.items():
    if re.fullmatch(_SCALAR_PATTERN, key):
      tensors[key] = jax.ShapeDtypeStruct((), jnp.dtype(entry["dtype"]), sharding=replicated)
  return tensors


def averaged_params(tensors: dict[str, Any]) -> NamedArrays | None:
  """Compute the averaged parameters, by name, from the tensors that `averaged_tensors` names.

  Returns:
    None if no update has been averaged.
  """
  if EMA_COUNT in tensors and int(tensors[EMA_COUNT]) == 0:
    return None
  # optax counts steps from 1
  if SCHEDULE_FREE_STEP in tensors and int(tensors[SCHEDULE_FREE_STEP]) == 1:
    return None
  weights = _without_prefix(tensors, "params/")
  z_params = _without_prefix(tensors, SCHEDULE_FREE_Z)
  if z_params:
    z_params = {name: jax.device_put(x, weights[name].sharding) for name, x in z_params.items()}
    averaged = {name: weights[name] for name in z_params}
    weights |= _schedule_free_mean(averaged, z_params, tensors[SCHEDULE_FREE_B1])
  return weights | _without_prefix(tensors, EMA_MEAN)


def _without_prefix(tensors: dict[str, Any], prefix: str) -> dict[str, Any]:
  """Select the tensors whose names begin with a prefix, and remove it from the names."""
  return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


@jax.jit
def _schedule_free_mean(weights: NamedArrays, z: NamedArrays, b1: jax.Array) -> NamedArrays:
  """Compute the mean x from the weights y and from z; see `training/ema.py`."""
  # optax reads no other fields here
  state = ScheduleFreeState(
    b1=b1, weight_sum=None, step_count=None, max_lr=None, base_optimizer_state=None, z=z
  )
  return optax.contrib.schedule_free_eval_params(state, weights)
