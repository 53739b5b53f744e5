"""Copies of the tensors to save, so that training goes on while they are written."""

import logging

import jax
import jax.numpy as jnp

from t5x_like.errors import one_line

HOST = "pinned_host"  # the memory of a device's host that the device reaches
_MOST_PINNED = 2**35  # bytes; XLA gives a process on GPUs 64 GB of pinned memory, and orbax may copy it once more
_log = logging.getLogger("t5x_like.checkpoint")


class Copies:
  """Makes copies of tensors that stay when the tensors are donated, without waiting for them.

  They are in the hosts' memory. Where it holds too little, or on a platform that cannot do it, there are none.
  """

  def __init__(self):
    self._works: bool | None = None  # not tried yet

  def __call__(self, tensors: dict[str, jax.Array]) -> dict[str, jax.Array] | None:
    if not tensors or self._works is False:
      return None
    shardings = {name: x.sharding for name, x in tensors.items()}
    if jax.default_backend() == "cpu":
      return jax.jit(_copied, out_shardings=shardings)(tensors)
    if sum(shard.data.nbytes for x in tensors.values() for shard in x.addressable_shards) > _MOST_PINNED:
      return None
    try:
      copies = jax.device_put(tensors, {name: s.with_memory_kind(HOST) for name, s in shardings.items()})
      if self._works is None:
        jax.block_until_ready(copies)
    except (ValueError, RuntimeError) as error:
      _log.warning("checkpoints are written without copies in pinned memory, steps wait longer: %s", one_line(error))
      copies = None
    self._works = copies is not None
    return copies


def _copied(tensors: dict[str, jax.Array]) -> dict[str, jax.Array]:
  return jax.tree.map(jnp.copy, tensors)
