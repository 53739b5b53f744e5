"""Generation from a key/value cache. Static shapes throughout: one compilation serves every batch of a size."""

import dataclasses

import jax
import jax.numpy as jnp

EOS_ID = 1
START_ID = 0  # T5 starts its decoder with padding


@dataclasses.dataclass(frozen=True)
class DecodeState:
  """Everything a decoder remembers between calls; a pytree.

  Attributes:
    cache: keys and values of every layer, as the stack lays them out.
    pos: int32 [B or 1, slots], the position of the token in each cache slot, -1 where the slot is empty.
    slot: int32 scalar, the first empty slot.
    memory_pos, memory_valid: positions and validity of the encoder's keys; None for decoder-only models.
  """

  cache: dict
  pos: jax.Array
  slot: jax.Array
  memory_pos: jax.Array | None = None
  memory_valid: jax.Array | None = None

  @classmethod
  def empty(cls, cache, batch: int, slots: int, memory_pos=None, memory_valid=None) -> "DecodeState":
    return cls(cache, jnp.full((1, slots), -1, jnp.int32), jnp.int32(0), memory_pos, memory_valid)

  def advance(self, tokens_BT: jax.Array) -> tuple[jax.Array, "DecodeState"]:
    """Gives the next T tokens their positions and slots. Returns (int32 [1, T], state)."""
    length = tokens_BT.shape[1]
    q_pos = self.slot + jnp.arange(length, dtype=jnp.int32)[None]
    pos = jax.lax.dynamic_update_slice(self.pos, q_pos, (0, self.slot))
    return q_pos, dataclasses.replace(self, pos=pos, slot=self.slot + length)


jax.tree_util.register_dataclass(DecodeState)


def greedy(model, batch: dict[str, jax.Array], *, max_length: int) -> jax.Array:
  """The most likely next token, again and again, until every row has ended.

  Args:
    model: has `start_decoding(batch, slots)` and `decode(tokens, state)`.
    batch: what `start_decoding` reads.
    max_length: number of tokens generated at most.
  Returns:
    int32 [B, max_length]; 0 after the end-of-sequence token.
  """
  state = model.start_decoding(batch, max_length)
  B = batch["encoder_input_tokens"].shape[0]
  tokens_BT = jnp.zeros((B, max_length), jnp.int32)

  def more(carry):
    _, _, _, ended_B, step = carry
    return (step < max_length) & ~jnp.all(ended_B)

  def step(carry):
    tokens_BT, last_B1, state, ended_B, step = carry
    logits_B1V, state = model.decode(last_B1, state)
    next_B = jnp.where(ended_B, 0, jnp.argmax(logits_B1V[:, -1], axis=-1).astype(jnp.int32))
    tokens_BT = jax.lax.dynamic_update_slice(tokens_BT, next_B[:, None], (0, step))
    return tokens_BT, next_B[:, None], state, ended_B | (next_B == EOS_ID), step + 1

  # Rows without any input (the padding of a last batch) have nothing to decode.
  ended_B = jnp.all(batch["encoder_input_tokens"] == 0, axis=1)
  start = (tokens_BT, jnp.full((B, 1), START_ID, jnp.int32), state, ended_B, jnp.int32(0))
  return jax.lax.while_loop(more, step, start)[0]
