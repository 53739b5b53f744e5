"""How positions enter a Transformer: one protocol, each scheme filling in the hooks it needs.

Positions are explicit integers, so packed sequences and decoding from a cache need no special case.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_like.nn import params


class Position(nnx.Module):
  """No positions: every hook is the identity."""

  def embed(self, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
    """Adds an absolute encoding to the token embeddings."""
    return x_BTD

  def rotate(self, x_BTNH: jax.Array, pos_BT: jax.Array) -> jax.Array:
    """Turns queries or keys by their position."""
    return x_BTNH

  def bias(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array | None:
    """float32 [B or 1, N, T, S], added to the attention logits; depends on positions alone."""
    return None


def relative_buckets(relative: jax.Array, *, bidirectional: bool, buckets: int, max_distance: int) -> jax.Array:
  """T5's bucket of `key position - query position` (Raffel et al. 2020, section 2.1).

  Half of the buckets are exact distances, the other half grow logarithmically up to `max_distance`, and everything
  beyond falls in the last. Bidirectional stacks spend half of all buckets on keys after the query; causal stacks put
  those in bucket 0.

  Args:
    relative: int32, any shape.
  Returns:
    int32 of the same shape, in [0, buckets).
  """
  future = jnp.zeros_like(relative)
  distance = -relative
  if bidirectional:
    buckets //= 2
    future = jnp.where(distance < 0, buckets, 0)
    distance = jnp.abs(distance)
  else:
    distance = jnp.maximum(distance, 0)
  exact = buckets // 2
  # The smallest distance of each logarithmic bucket, found in exact integers: no float rounding at the edges.
  edges = [_first_distance(bucket, exact, buckets, max_distance) for bucket in range(exact + 1, buckets)]
  far = exact + jnp.searchsorted(np.asarray(edges, np.int32), distance, side="right").astype(jnp.int32)
  return future + jnp.where(distance < exact, distance, far)


def _first_distance(bucket: int, exact: int, buckets: int, max_distance: int) -> int:
  """Smallest d with `exact + floor(log(d/exact) / log(max_distance/exact) * (buckets-exact)) >= bucket`."""
  share = (bucket - exact) / (buckets - exact)
  d = max(exact, math.floor(exact * (max_distance / exact) ** share) - 1)
  # d**n >= exact**(n-k) * max_distance**k, with k = bucket - exact and n = buckets - exact
  n, k = buckets - exact, bucket - exact
  while d**n < exact ** (n - k) * max_distance**k:
    d += 1
  return d


class RelativeBias(Position):
  """T5's learned scalar for each (bucket, head), added to the logits (Raffel et al. 2020, section 2.1).

  A stack that shares one table owns one of these; the bias is computed once and used by every layer.
  """

  def __init__(
    self, heads: int, rngs: nnx.Rngs, *, bidirectional: bool, buckets: int = 32, max_distance: int = 128
  ):
    init = params.normal(math.sqrt(2.0 / (buckets + heads)))
    self.table = params.param(rngs, init, (buckets, heads), (None, "heads"))
    self.bidirectional = bidirectional
    self.buckets = buckets
    self.max_distance = max_distance

  def bias(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    relative_BTS = k_pos_BS[:, None, :] - q_pos_BT[:, :, None]
    bucket_BTS = relative_buckets(
      relative_BTS, bidirectional=self.bidirectional, buckets=self.buckets, max_distance=self.max_distance
    )
    # A one-hot product rather than a gather: its gradient is a matrix product too, not a scatter.
    onehot_BTSX = jax.nn.one_hot(bucket_BTS, self.buckets, dtype=jnp.float32)
    return jnp.einsum("BTSX,XN->BNTS", onehot_BTSX, self.table[...])
