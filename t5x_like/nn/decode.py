"""A decoder's state between calls; `generate` and `beam_search` use it.

Shapes are static: all batches of the same size share one compilation.
"""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_like.nn.mask import Mask


@dataclasses.dataclass(frozen=True)
class DecodeState:
  """A key/value cache and the positions of its entries; a pytree.

  Attributes:
    cache: keys and values of every layer; the batch is axis 1. A stack that was split into
      its layers (`decoding.unrolled`) has a list of their caches, where the batch is axis 0.
    pos: int32 [B, slots], the position of the token in each cache slot, -1 if the slot is empty or
      padding.
    next_pos: int32 [B], the position of each row's next token.
    slot: int32 scalar, the first unused slot.
    prefix: bool [B, slots], tokens that causality does not hide; None without a prefix.
    memory_pos, memory_valid: positions and validity of the encoder's keys; None for decoder-only
      models.
  """

  cache: dict | list
  pos: jax.Array
  next_pos: jax.Array
  slot: jax.Array
  prefix: jax.Array | None = None
  memory_pos: jax.Array | None = None
  memory_valid: jax.Array | None = None

  @classmethod
  def empty(
    cls, cache, batch: int, slots: int, *, prefix: bool = False, memory_pos=None, memory_valid=None
  ):
    """Return the state before the first token.

    Args:
      slots: number of tokens that the cache holds.
      prefix: whether tokens may be marked as a prefix.
    """
    marks = jnp.zeros((batch, slots), bool) if prefix else None
    if memory_pos is not None:  # one row per example, so that beams can be reordered
      memory_pos = jnp.broadcast_to(memory_pos, (batch, memory_pos.shape[1]))
    pos = jnp.full((batch, slots), -1, jnp.int32)
    next_pos = jnp.zeros(batch, jnp.int32)
    return cls(cache, pos, next_pos, jnp.int32(0), marks, memory_pos, memory_valid)

  def advance(
    self, tokens_BT: jax.Array, valid_BT=None, prefix_BT=None
  ) -> tuple[jax.Array, "DecodeState"]:
    """Assign positions and slots to the next T tokens.

    Args:
      valid_BT: bool, False for padding (on either side), which takes a slot but no position.
      prefix_BT: bool, tokens that every query of this and later calls sees.
    Returns:
      (int32 [B, T] positions, state)
    """
    B, T = tokens_BT.shape
    if valid_BT is None:
      valid_BT = jnp.ones((B, T), bool)
    order_BT = jnp.cumsum(valid_BT, axis=1, dtype=jnp.int32) - 1
    q_pos_BT = self.next_pos[:, None] + jnp.maximum(order_BT, 0)
    slot_pos_BT = jnp.where(valid_BT, q_pos_BT, -1)
    pos = jax.lax.dynamic_update_slice(self.pos, slot_pos_BT, (0, self.slot))
    prefix = self.prefix
    if prefix is not None and prefix_BT is not None:
      prefix = jax.lax.dynamic_update_slice(prefix, prefix_BT & valid_BT, (0, self.slot))
    next_pos = self.next_pos + jnp.sum(valid_BT, axis=1, dtype=jnp.int32)
    slot = self.slot + T
    state = dataclasses.replace(self, pos=pos, next_pos=next_pos, slot=slot, prefix=prefix)
    return q_pos_BT, state

  def mask(self, q_pos_BT: jax.Array) -> Mask:
    """Return the mask from queries at these positions to the cache."""
    return Mask(q_pos_BT, self.pos, k_valid=self.pos >= 0, k_prefix=self.prefix, causal=True)


jax.tree_util.register_dataclass(DecodeState)
