"""T5's relative positions: learned scalars for buckets of distances, added to the logits."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from t5x_like.nn.positions import Position
from t5x_like.slots import PositiveInt


def relative_buckets(
  relative: jax.Array, *, bidirectional: bool, buckets: int, max_distance: int
) -> jax.Array:
  """Return T5's bucket of `key position - query position` (Raffel et al. 2020, section 2.1).

  Half of the buckets are exact distances, the other half grow logarithmically up to `max_distance`,
  and the last holds everything beyond. Bidirectional stacks use half of all buckets for keys after
  the query; causal stacks put those in bucket 0.

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
  # The smallest distance of each logarithmic bucket, in exact integers: no float rounding at the
  # edges.
  log_buckets = range(exact + 1, buckets)
  edges = [_first_distance(bucket, exact, buckets, max_distance) for bucket in log_buckets]
  log_bucket = jnp.searchsorted(np.asarray(edges, np.int32), distance, side="right")
  far = exact + log_bucket.astype(jnp.int32)
  return future + jnp.where(distance < exact, distance, far)


def _first_distance(bucket: int, exact: int, buckets: int, max_distance: int) -> int:
  """Return the smallest distance d of a logarithmic bucket.

  It is the smallest with `exact + floor(log(d/exact) / log(max_distance/exact) * (buckets-exact))
  >= bucket`.
  """
  share = (bucket - exact) / (buckets - exact)
  d = max(exact, math.floor(exact * (max_distance / exact) ** share) - 1)
  # d**n >= exact**(n-k) * max_distance**k, with k = bucket - exact and n = buckets - exact
  n = buckets - exact
  k = bucket - exact
  while d**n < exact ** (n - k) * max_distance**k:
    d += 1
  return d


class RelativeBias(Position):
  """T5's learned scalar for each (bucket, head), added to the logits.

  It follows Raffel et al. 2020, section 2.1. By default the stack holds one table, and its bias is
  computed once for all layers. In umT5 (Chung et al. 2023) every layer has its own table
  (`shared=False`). `bidirectional=None` means every stack that is not causal.
  """

  biased = True

  def __init__(
    self,
    rngs: nnx.Rngs,
    dims: Dims,
    causal: bool = False,
    *,
    buckets: PositiveInt = 32,
    max_distance: PositiveInt = 128,
    shared: bool = True,
    bidirectional: bool | None = None,
  ):
    init = params.normal(math.sqrt(2.0 / (buckets + dims.heads)))
    self.table = params.param(rngs, init, (buckets, dims.heads), (None, "heads"))
    self.owner = "stack" if shared else "layer"
    self.bidirectional = not causal if bidirectional is None else bidirectional
    self.buckets = buckets
    self.max_distance = max_distance

  def bias_of_distance(self, relative_X: jax.Array) -> jax.Array:
    return jnp.einsum("XP,PN->NX", self._onehot(relative_X), self.table[...])

  def bias(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    relative_BTS = k_pos_BS[:, None, :] - q_pos_BT[:, :, None]
    onehot_BTSP = self._onehot(relative_BTS)
    return jnp.einsum("BTSP,PN->BNTS", onehot_BTSP, self.table[...])

  def _onehot(self, relative: jax.Array) -> jax.Array:
    """Return one-hot buckets, float32 [..., buckets].

    Unlike a lookup, a product with them has no scatter in its gradient.
    """
    bucket = relative_buckets(
      relative,
      bidirectional=self.bidirectional,
      buckets=self.buckets,
      max_distance=self.max_distance,
    )
    return jax.nn.one_hot(bucket, self.buckets, dtype=jnp.float32)


make = RelativeBias
