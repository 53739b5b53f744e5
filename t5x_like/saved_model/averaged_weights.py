"""Read the averaged weights of a run from its checkpoints; see `training/ema.py`."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import ScheduleFreeState

Named = dict[str, jax.Array]
# Names of tensors in a checkpoint; those of `schedule_free` are fields of optax's state.
COUNT = "ema/count"
MEAN = "ema/mean/"
_SCALAR = "(ema|schedule_free)/[^/]+"
NEXT = "schedule_free/step_count"
B1 = "schedule_free/b1"
Z = "schedule_free/z/"


def averaged_tensors(saved: dict[str, Any], abstract_params: dict[str, Any]) -> dict[str, Any]:
  """Return the tensors of a checkpoint that hold the averaged weights.

  Args:
    saved: the manifest's entries of the tensors in the checkpoint, by name.
    abstract_params: abstract parameters by name.
  Returns:
    Abstract tensors by name in the checkpoint: `ema/mean/…` where there is one, else `params/…`,
    with their `schedule_free/z/…` where there is one; and the scalars that belong to these.
  """
  tensors = {}
  for name, x in abstract_params.items():
    tensors[f"{MEAN}{name}" if f"{MEAN}{name}" in saved else f"params/{name}"] = x
  for name, x in abstract_params.items():
    if f"{Z}{name}" in saved:
      tensors[f"{Z}{name}"] = x
  mesh = next(iter(abstract_params.values())).sharding.mesh
  replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  for key, entry in saved.items():
    if re.fullmatch(_SCALAR, key):
      tensors[key] = jax.ShapeDtypeStruct((), jnp.dtype(entry["dtype"]), sharding=replicated)
  return tensors


def averaged_params(tensors: dict[str, Any]) -> Named | None:
  """Return parameters by name from the tensors that `averaged_tensors` names.

  Returns:
    None if no update has been averaged.
  """
  if int(tensors.get(COUNT, 1)) == 0 or int(tensors.get(NEXT, 2)) == 1:
    return None
  weights = _without_prefix(tensors, "params/")
  z_params = _without_prefix(tensors, Z)
  if z_params:
    z_params = {name: jax.device_put(x, weights[name].sharding) for name, x in z_params.items()}
    averaged = {name: weights[name] for name in z_params}
    weights |= _schedule_free_mean(averaged, z_params, tensors[B1])
  return weights | _without_prefix(tensors, MEAN)


def _without_prefix(tensors: dict[str, Any], prefix: str) -> dict[str, Any]:
  """Return the tensors whose names begin with a prefix, by the rest of their names."""
  return {n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix)}


@jax.jit
def _schedule_free_mean(weights: Named, z: Named, b1: jax.Array) -> Named:
  return optax.contrib.schedule_free_eval_params(
    ScheduleFreeState(b1, None, None, None, None, z), weights
  )
