"""Relative positions with learned tables: T5's buckets on the logits, Shaw's vectors on keys and values."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.position import Position


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

  A stack that shares one table owns one of these; the bias is computed once and used by every layer. In umT5 (Chung et
  al. 2023) every layer owns its own.
  """

  biased = True

  def __init__(self, heads: int, rngs: nnx.Rngs, *, bidirectional: bool, buckets: int = 32, max_distance: int = 128):
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


class ShawPosition(Position):
  """Learned vectors for each clipped distance, added to keys and to values (Shaw et al. 2018, equations 3 and 4).

  The vectors are shared by the heads of a layer, as in the paper (section 3.3); every layer has its own.
  """

  query_dependent = True

  def __init__(self, head_dim: int, rngs: nnx.Rngs, *, clip: int = 16, values: bool = True):
    init = params.fan_in_normal(head_dim)
    self.keys = params.param(rngs, init, (2 * clip + 1, head_dim), (None, None))
    self.value_table = params.param(rngs, init, (2 * clip + 1, head_dim), (None, None)) if values else None
    self.clip = clip

  def logits(self, q_BTNH: jax.Array, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    # One product with every distance's vector, then a lookup: [T, S, H] is never made.
    by_distance = jnp.einsum("BTNH,XH->BTNX", q_BTNH, self.keys[...].astype(q_BTNH.dtype))
    onehot_BTSX = self._onehot(q_pos_BT, k_pos_BS, jnp.float32)
    onehot_BTSX = jnp.broadcast_to(onehot_BTSX, (q_BTNH.shape[0], *onehot_BTSX.shape[1:]))
    return jnp.einsum("BTNX,BTSX->BNTS", by_distance.astype(jnp.float32), onehot_BTSX)

  def values(self, probs_BNTS: jax.Array, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    if self.value_table is None:
      return jnp.zeros((), probs_BNTS.dtype)
    onehot_BTSX = self._onehot(q_pos_BT, k_pos_BS, probs_BNTS.dtype)
    onehot_BTSX = jnp.broadcast_to(onehot_BTSX, (probs_BNTS.shape[0], *onehot_BTSX.shape[1:]))
    by_distance = jnp.einsum("BNTS,BTSX->BTNX", probs_BNTS, onehot_BTSX)
    return jnp.einsum("BTNX,XH->BTNH", by_distance, self.value_table[...].astype(probs_BNTS.dtype))

  def _onehot(self, q_pos_BT, k_pos_BS, dtype) -> jax.Array:
    relative_BTS = jnp.clip(k_pos_BS[:, None, :] - q_pos_BT[:, :, None], -self.clip, self.clip)
    return jax.nn.one_hot(relative_BTS + self.clip, 2 * self.clip + 1, dtype=dtype)
