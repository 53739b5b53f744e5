"""Disentangled attention: logits from separate vectors for content and relative position.

The logit of a query at i and a key at j is (q_i k_j + q_i r'_d + k_j r_d) / sqrt(3 H), where r and
r' are the query and key projections of the vector of the distance d from j to i
(https://arxiv.org/abs/2006.03654, equation 4). As in DeBERTa v3 (https://arxiv.org/abs/2111.09543),
content and distances share the query and key projections, distances fall into buckets that grow
logarithmically, and all layers share the distance vectors and their norm.

In shapes, P is the 2 * buckets rows of the table of distance vectors.
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
  """A stack whose attention layers receive the distance vectors in place of a bias.

  Args:
    stack: a stack without positions, whose attributes are copied.
    rngs, init: initialise the table of distance vectors, [P, D].
    norm: normalises the distance vectors.
    buckets: number of buckets for keys before the query, and for keys after it.
    max_distance: all distances from here on share the last bucket.
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
    """Return the distance vectors, float32 [P, D], which `DisentangledAttention` expects here."""
    return self.distance_norm(self.distances[...])


class DisentangledAttention(SelfAttention):
  """Self-attention of a `DisentangledStack`.

  Args:
    attention: the layer whose attributes are copied; its scale must be 1 / sqrt(3 H), as logits are
      sums of three products.
    buckets, max_distance: as in `DisentangledStack`.
  """

  def __init__(self, attention: SelfAttention, buckets: int, max_distance: int):
    copy_attributes(self, attention)
    self.buckets = buckets
    self.max_distance = max_distance

  def __call__(self, x_BTD: jax.Array, context: Context, cache: dict | None, key: jax.Array | None):
    """Attend within `x_BTD`; return (the output [B, T, D], no auxiliary outputs, no cache)."""
    mask = context.mask
    q_BTX, k_BTX, v_BTX = apply_jointly((self.query, self.key, self.value), x_BTD)
    k_BSNH, v_BSNH = self.keys_and_values(k_BTX, v_BTX, mask.q_pos)
    # the stack's `bias` has returned distance vectors
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

    Each distance up to `buckets // 2` has its own row; longer ones share rows logarithmically.
    """
    middle = self.buckets // 2
    magnitude = jnp.abs(distance)
    log_range = jnp.log(jnp.float32((self.max_distance - 1) / middle))
    fraction = jnp.log(jnp.maximum(magnitude, middle) / middle) / log_range
    log_bucket = jnp.ceil(fraction * (middle - 1)).astype(jnp.int32) + middle
    bucket = jnp.where(magnitude <= middle, distance, log_bucket * jnp.sign(distance))
    return jnp.clip(bucket + self.buckets, 0, 2 * self.buckets - 1)


def _select_products(
  equation: str, x: jax.Array, vectors_PNH: jax.Array, row_BXY: jax.Array
) -> jax.Array:
  """Multiply `x` by all distance vectors, and select the product for each pair of positions.

  X and Y are T and S in either order. Returns float32 [B, N, X, Y].
  """
  product_BNXP = wide_einsum(equation, x, vectors_PNH)
  B, N, X, _ = product_BNXP.shape
  row_BNXY = jnp.broadcast_to(row_BXY[:, None], (B, N, X, row_BXY.shape[-1]))
  return jnp.take_along_axis(product_BNXP, row_BNXY, axis=-1)
