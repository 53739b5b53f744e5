"""Disentangled attention: contents and relative positions have vectors of their own.

The logit of a query at i and a key at j is (q_i k_j + q_i r'_d + k_j r_d) / sqrt(3 H), where r and
r' are the query and key projections of the vector of the distance d from j to i
(https://arxiv.org/abs/2006.03654, equation 4). As in DeBERTa v3 (https://arxiv.org/abs/2111.09543),
the projections are the contents' own, distances are counted in buckets that grow logarithmically,
and all layers share the vectors and their norm.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.attention import SelfAttention
from t5x_like.nn.dims import subkey
from t5x_like.nn.layer import Context
from t5x_like.nn.linear import apply_jointly, wide_einsum
from t5x_like.nn.shared_stack import copy_attributes
from t5x_like.nn.stack import Stack


class DisentangledStack(Stack):
  """A stack whose attention layers receive the vectors of all distances.

  Args:
    stack: a stack without positions, whose parts this one takes over.
    rngs, init, norm: for the table of vectors, [2 * buckets, D], and its norm.
    buckets: number of buckets on each side.
    max_distance: distance from which all share a bucket.
  """

  def __init__(
    self, stack: Stack, rngs: nnx.Rngs, *, init, norm: nnx.Module, buckets: int, max_distance: int
  ):
    copy_attributes(self, stack)
    attention = self.blocks.self_attention.layer
    self.blocks.self_attention.layer = DisentangledAttention(attention, buckets, max_distance)
    width = attention.query.kernel.shape[-2]
    self.distances = params.param(rngs, init, (2 * buckets, width), (None, "embed"))
    self.distance_norm = norm

  def bias(self, mask, batch: int) -> jax.Array:
    """Return the vectors of distances, float32 [P, D], for `DisentangledAttention`."""
    return self.distance_norm(self.distances[...])


class DisentangledAttention(SelfAttention):
  """Self-attention of a `DisentangledStack`.

  Args:
    attention: the layer whose projections this one takes over; its scale must fit three sums of
      products.
  """

  def __init__(self, attention: SelfAttention, buckets: int, max_distance: int):
    copy_attributes(self, attention)
    self.buckets = buckets
    self.max_distance = max_distance

  def __call__(self, x_BTD: jax.Array, context: Context, cache: dict | None, key: jax.Array | None):
    """Return ([B, T, D], {}, None)."""
    mask = context.mask
    q_BTX, k_BTX, v_BTX = apply_jointly((self.query, self.key, self.value), x_BTD)
    k_BSNH, v_BSNH = self.keys_and_values(k_BTX, v_BTX, mask.q_pos)
    vectors_PD = self.dropout(context.bias, subkey(key, 1))
    vectors_PD = vectors_PD.astype(x_BTD.dtype)
    r_q_PX, r_k_PX = apply_jointly((self.query, self.key), vectors_PD)
    r_q_PNH = r_q_PX.reshape(len(r_q_PX), -1, self.head_dim)
    r_k_PNH = r_k_PX.reshape(len(r_k_PX), -1, self.head_dim)
    distance_BTS = mask.q_pos[:, :, None] - mask.k_pos[:, None, :]
    row_BTS = self.table_rows(distance_BTS)
    row_BST = jnp.swapaxes(row_BTS, 1, 2)
    q_BTNH = q_BTX.reshape(*q_BTX.shape[:2], -1, self.head_dim)
    by_query_BNTS = _select_products("BTNH,PNH->BNTP", q_BTNH, r_k_PNH, row_BTS)
    by_key_BNST = _select_products("BSNH,PNH->BNSP", k_BSNH, r_q_PNH, row_BST)
    by_key_BNTS = jnp.swapaxes(by_key_BNST, 2, 3)
    bias_BNTS = self.scale * (by_query_BNTS + by_key_BNTS)
    y_BTD = self.attend(self.core, q_BTX, k_BSNH, v_BSNH, mask, bias_BNTS, key)
    return y_BTD, {}, None

  def table_rows(self, distance: jax.Array) -> jax.Array:
    """Return the row of each distance in the table.

    Rows are exact up to half of the buckets, logarithmic beyond.
    """
    middle = self.buckets // 2
    size = jnp.abs(distance)
    longest = jnp.log(jnp.float32((self.max_distance - 1) / middle))
    ratio = jnp.log(jnp.maximum(size, middle) / middle) / longest
    far = jnp.ceil(ratio * (middle - 1)).astype(jnp.int32) + middle
    bucket = jnp.where(size <= middle, distance, far * jnp.sign(distance))
    return jnp.clip(bucket + self.buckets, 0, 2 * self.buckets - 1)


def _select_products(
  equation: str, x: jax.Array, vectors_PNH: jax.Array, row_BXY: jax.Array
) -> jax.Array:
  """Multiply by the vectors of all distances, and take each pair's: float32 [B, N, X, Y]."""
  product_BNXP = wide_einsum(equation, x, vectors_PNH)
  B, N, X, _ = product_BNXP.shape
  row_BNXY = jnp.broadcast_to(row_BXY[:, None], (B, N, X, row_BXY.shape[-1]))
  return jnp.take_along_axis(product_BNXP, row_BNXY, axis=-1)
