"""Attention with linear biases."""

import math

import jax
import jax.numpy as jnp

from t5x_like.nn.dims import Dims
from t5x_like.nn.positions import Position


class Alibi(Position):
  """A penalty on the logits that grows with the distance, with a slope for each head.

  It follows Press et al. 2022. If the number of heads is not a power of two, the slopes of the next
  lower power are followed by every second slope of the next higher (the paper's code, BLOOM). With
  `mpt`, all belong to the next higher, every second one first (MPT).

  With `falcon`, the penalty is computed as in Falcon RW's code: slopes, and their products with the
  position of a key instead of the distance, are rounded to bfloat16, and the products are divided
  by sqrt(head_dim) afterwards. Softmax is invariant to the difference from the distance, but from
  position 256 on the rounding is not negligible.
  """

  owner = "stack"
  biased = True

  def __init__(self, dims: Dims, *, mpt: bool = False, falcon: bool = False):
    self.slopes = alibi_slopes(dims.heads, mpt=mpt)
    self.falcon = falcon
    self.head_dim = dims.head_dim

  def bias_of_distance(self, relative_X: jax.Array) -> jax.Array | None:
    if self.falcon:
      return None
    penalties_N1 = -jnp.asarray(self.slopes, jnp.float32)[:, None]
    distance_X = jnp.abs(relative_X).astype(jnp.float32)
    return penalties_N1 * distance_X

  def bias(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    if self.falcon:
      return self._falcon_bias(k_pos_BS, q_pos_BT.shape[1])
    distance_BTS = jnp.abs(k_pos_BS[:, None, :] - q_pos_BT[:, :, None])
    slopes_N11 = jnp.asarray(self.slopes, jnp.float32)[:, None, None]
    return -slopes_N11 * distance_BTS[:, None].astype(jnp.float32)

  def _falcon_bias(self, k_pos_BS: jax.Array, queries: int) -> jax.Array:
    """Return Falcon's bias [B, N, T, S], the same for all queries."""
    slopes_N1 = jnp.asarray(self.slopes, jnp.float32)[:, None]
    slopes_N1 = _round_to_bfloat16(slopes_N1)
    positions_B1S = k_pos_BS.astype(jnp.float32)[:, None]
    positions_B1S = _round_to_bfloat16(positions_B1S)
    products_BNS = _round_to_bfloat16(slopes_N1 * positions_B1S)
    bias_BNS = products_BNS / math.sqrt(self.head_dim)
    B, N, S = bias_BNS.shape
    return jnp.broadcast_to(bias_BNS[:, :, None], (B, N, queries, S))


def _round_to_bfloat16(x: jax.Array) -> jax.Array:
  """Round float32 to the nearest bfloat16; compilers may leave out a pair of casts."""
  return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def alibi_slopes(heads: int, *, mpt: bool = False) -> tuple[float, ...]:
  """Return geometric slopes, `2^(-8 i / heads)` for a power of two (Press et al. 2022)."""
  lower_power = 2 ** math.floor(math.log2(heads))
  slopes = _geometric_slopes(lower_power)
  if lower_power == heads:
    return tuple(slopes)
  finer = _geometric_slopes(2 * lower_power)
  first = finer[1::2] if mpt else slopes
  return tuple((first + finer[0::2])[:heads])


def _geometric_slopes(heads: int) -> list[float]:
  return [2.0 ** (-8 * (i + 1) / heads) for i in range(heads)]


make = Alibi
