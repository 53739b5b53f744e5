"""Attention with linear biases."""

import math

import jax
import jax.numpy as jnp

from t5x_like.nn.dims import Dims
from t5x_like.nn.positions import Position


class Alibi(Position):
  """A penalty on the logits that grows with the distance, with a different slope in each head (Press et al. 2022).

  If the number of heads is not a power of two, the slopes of the next lower power are followed by every second slope of
  the next higher (the paper's code, BLOOM). With `mpt`, all belong to the next higher, every second one first (MPT).
  """

  place = "stack"
  biased = True

  def __init__(self, dims: Dims, *, mpt: bool = False):
    self.slopes = alibi_slopes(dims.heads, mpt=mpt)

  def of_distance(self, relative_X: jax.Array) -> jax.Array:
    return -jnp.asarray(self.slopes, jnp.float32)[:, None] * jnp.abs(relative_X).astype(jnp.float32)

  def bias(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    distance_B1TS = jnp.abs(k_pos_BS[:, None, :] - q_pos_BT[:, :, None])[:, None].astype(jnp.float32)
    return -jnp.asarray(self.slopes, jnp.float32)[:, None, None] * distance_B1TS


def alibi_slopes(heads: int, *, mpt: bool = False) -> tuple[float, ...]:
  """Return geometric slopes, `2^(-8 i / heads)` for a power of two (Press et al. 2022, section 3)."""
  low = 2 ** math.floor(math.log2(heads))
  powers = [2.0 ** (-8 * (i + 1) / low) for i in range(low)]
  if low == heads:
    return tuple(powers)
  double = [2.0 ** (-8 * (i + 1) / (2 * low)) for i in range(2 * low)]
  return tuple((double[1::2] + double[0::2])[:heads] if mpt else (powers + double[0::2])[:heads])


make = Alibi
