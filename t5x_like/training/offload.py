"""Keep the arrays that devices need only once in a step in the hosts' memory."""

import dataclasses

import jax
import optax

from t5x_like.checkpoints.tensors import HOST
from t5x_like.errors import UserError
from t5x_like.training.state import TrainState


def check_host_memory(key: str, mesh: jax.sharding.Mesh) -> None:
  """Refuse devices that cannot reach the memory of their hosts."""
  devices = [*mesh.local_devices, *mesh.devices.flat]
  kinds = [memory.kind for memory in devices[0].addressable_memories()]
  if HOST not in kinds:
    description = f"found devices ({devices[0].device_kind}) with the memories {', '.join(kinds)}"
    raise UserError(
      f"{key}: {description}, expected {HOST} among them; leave it out on this platform"
    )


def offload_optimizer_state(
  optimizer: optax.GradientTransformation, state: TrainState, mesh: jax.sharding.Mesh
) -> tuple[optax.GradientTransformation, TrainState]:
  """Keep the arrays of an optimizer in the hosts' memory between steps.

  Numbers such as counts stay on the devices. An update moves the arrays to the devices and back.

  Returns:
    The optimizer, and the abstract state with these memories.
  Raises:
    UserError: the devices cannot reach memory of their hosts.
  """
  check_host_memory("config.optimizer.offload", mesh)
  on_devices = jax.tree.map(lambda leaf: leaf.sharding, state.opt_state)
  shardings = jax.tree.map(
    lambda leaf: leaf.sharding.with_memory_kind(HOST) if leaf.ndim else leaf.sharding,
    state.opt_state,
  )

  def update(grads, opt_state, params=None, **extra):
    updates, opt_state = optimizer.update(
      grads, jax.device_put(opt_state, on_devices), params, **extra
    )
    return updates, jax.device_put(opt_state, shardings)

  abstract_opt_state = jax.tree.map(
    lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
    state.opt_state,
    shardings,
  )
  return optax.GradientTransformationExtraArgs(optimizer.init, update), dataclasses.replace(
    state, opt_state=abstract_opt_state
  )
