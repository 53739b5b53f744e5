"""Attention that adds position vectors to queries and keys, but not to values (Carion et al. 2020, figure 10)."""

import jax
import jax.numpy as jnp

from t5x_like.architectures.build import StackBuilder
from t5x_like.nn import attention
from t5x_like.nn.attention import Attention
from t5x_like.nn.dims import NO_DROPOUT
from t5x_like.nn.layer import Context
from t5x_like.nn.stack import Stack

_TEMPERATURE, _SCALE, _EPSILON = 10_000, 6.283185307179586, 1e-6


class SelfAttention(attention.SelfAttention):
  """Attention among the vectors of a stack, with positions `context.places`."""

  def __call__(self, x_BTD: jax.Array, context: Context, cache: None, key: jax.Array | None):
    placed_BTD, mask = x_BTD + context.places, context.mask
    kv = self.keys_and_values(self.key(placed_BTD), self.value(x_BTD), mask.q_pos)
    return self.attend(self.core, self.query(placed_BTD), *kv, mask, context.bias, key), {}, cache


class CrossAttention(attention.CrossAttention):
  """Attention from a decoder, with positions `context.places`, to its memory, with `context.memory_places`."""

  def __call__(self, x_BTD: jax.Array, context: Context, cache: None, key: jax.Array | None):
    memory_BSD, mask = context.memory, context.memory_mask
    kv = self.keys_and_values(self.key(memory_BSD + context.memory_places), self.value(memory_BSD), mask.k_pos)
    return self.attend(self.core, self.query(x_BTD + context.places), *kv, mask, None, key), {}, cache


class PlacedBuilder(StackBuilder):
  """A builder of stacks with these attentions. As in DETR, no dropout follows the last block."""

  def stack(self, rngs) -> Stack:
    return super().stack(rngs).without(dropout=NO_DROPOUT)

  def _attention(self, kind: type[Attention], rngs, turn: int | None = None) -> Attention:
    return super()._attention(SelfAttention if kind is attention.SelfAttention else CrossAttention, rngs, turn)


def sines(valid_BYX: jax.Array, width: int) -> jax.Array:
  """Encode row and column, as fractions of the image without padding, by sines and cosines: float32 [B, Y * X, width].

  The first half of the channels encodes the row; in each half, sines and cosines alternate (Carion et al. 2020,
  appendix A.4, as in the authors' code).

  Args:
    valid_BYX: bool, False for padding.
  """
  frequency = _TEMPERATURE ** (-(jnp.arange(width // 2) // 2 * 2) / (width / 2))
  real_BYX = valid_BYX.astype(jnp.float32)
  halves = []
  for axis in (1, 2):
    count = jnp.cumsum(real_BYX, axis=axis)
    share = count / (jax.lax.index_in_dim(count, -1, axis) + _EPSILON) * _SCALE
    angles = share[..., None] * frequency
    halves.append(jnp.where(jnp.arange(width // 2) % 2, jnp.cos(angles), jnp.sin(angles)))
  return jnp.concatenate(halves, axis=-1).reshape(len(valid_BYX), -1, width)
