"""Two-stream attention with relative positions and segments.

It follows Yang et al. 2019 (https://arxiv.org/abs/1906.08237). A row has two streams (section 2.3):
the content stream, a state of each token, and the query stream, a state of each token to predict,
which depends on the token's position but not on the token. Both attend to the content stream only.
Here the query stream follows the content stream in one array [B, S + K, D], so that all other parts
of a block (norms, feed-forward layers, scans, recomputation) need not distinguish the two.

The logit of a query at i and a key at j is ((q_i + u) k_j + (q_i + v) r_{i-j} + (q_i + w) s_ij) /
sqrt(H). r is a projection of the sinusoids of the distance (Dai et al. 2019,
https://arxiv.org/abs/1901.02860, section 3.3), s_ij one of two vectors, for tokens of the same
segment and of different segments (section 2.5), and u, v, w are learned.

In shapes, T is S + K, P the 2 S - 1 distances from 1 - S to S - 1, C the two kinds of pairs (same
segment, different segments), and X all heads together, N * H.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from t5x_like.nn import params
from t5x_like.nn.attention import SelfAttention
from t5x_like.nn.dims import Dims, subkey
from t5x_like.nn.layer import Context
from t5x_like.nn.linear import Linear, apply_jointly, wide_einsum
from t5x_like.nn.mask import Mask


@dataclasses.dataclass(frozen=True)
class StreamMask(Mask):
  """A mask from the T = S + K rows of both streams to the S rows of the content stream.

  Attributes:
    q_order, k_order: int32 [B, T] and [B, S], numbers in the order of prediction; a query sees keys
      with the same number or a lower one. None for a stack without a query stream, where every
      token sees every other.
    q_types, k_types: int32 [B, T] and [B, S], the segments that s_ij compares.
  """

  q_order: jax.Array | None = None
  k_order: jax.Array | None = None
  q_types: jax.Array | None = None
  k_types: jax.Array | None = None

  def dense(self) -> jax.Array | None:
    allowed_BNTS = super().dense()
    if self.q_order is None:
      return allowed_BNTS
    in_order_BTS = self.k_order[:, None, :] <= self.q_order[:, :, None]
    in_order_B1TS = in_order_BTS[:, None]
    if allowed_BNTS is None:
      return in_order_B1TS
    return in_order_B1TS & allowed_BNTS


jax.tree_util.register_dataclass(StreamMask)


class TwoStreamAttention(SelfAttention):
  """The self-attention of both streams; its core must be the dense one.

  Args:
    options: the arguments of `Attention`.
  """

  def __init__(self, dims: Dims, rngs, *, init: Callable, **options):
    super().__init__(dims, rngs, init=init, **options)
    H = dims.head_dim
    X = dims.heads * H
    self.relative = Linear((dims.embed, X), ("embed", "heads"), init, rngs, unit=(1, H))
    self.content_bias = params.param(rngs, init, (X,), ("heads",), (H,))
    self.position_bias = params.param(rngs, init, (X,), ("heads",), (H,))
    self.type_bias = params.param(rngs, init, (X,), ("heads",), (H,))
    self.types = params.param(rngs, init, (2, X), (None, "heads"), (1, H))

  def __call__(self, x_BTD: jax.Array, context: Context, cache: dict | None, key: jax.Array | None):
    """Return ([B, T, D], {}, None); `context.mask` is a `StreamMask`."""
    mask = context.mask
    S = mask.k_types.shape[1]
    q_BTX = self.query(x_BTD)
    k_BSX, v_BSX = apply_jointly((self.key, self.value), x_BTD[:, :S])
    k_BSNH, v_BSNH = self.keys_and_values(k_BSX, v_BSX, mask.k_pos)
    position_logits_BNTS = self._position_logits(q_BTX, x_BTD.shape[-1], mask, key)
    type_logits_BNTS = self._type_logits(q_BTX, mask)
    bias_BNTS = self.scale * (position_logits_BNTS + type_logits_BNTS)
    content_q_BTX = q_BTX + self.content_bias[...].astype(q_BTX.dtype)
    y_BTD = self.attend(self.core, content_q_BTX, k_BSNH, v_BSNH, mask, bias_BNTS, key)
    return y_BTD, {}, None

  def _position_logits(
    self, q_BTX: jax.Array, width: int, mask: StreamMask, key: jax.Array | None
  ) -> jax.Array:
    """Compute (q_i + v) r_{i-j}, with sinusoids of `width` channels: float32 [B, N, T, S]."""
    dtype = q_BTX.dtype
    S = mask.k_types.shape[1]
    sinusoids_PD = sinusoids(jnp.arange(1 - S, S), width).astype(dtype)
    sinusoids_PD = self.dropout(sinusoids_PD, subkey(key, 1))
    relative_PNH = self._split_heads(self.relative(sinusoids_PD))
    biased_q_BTNH = self._split_heads(q_BTX + self.position_bias[...].astype(dtype))
    logits_BNTP = wide_einsum("BTNH,PNH->BNTP", biased_q_BTNH, relative_PNH)
    distance_BTS = mask.q_pos[:, :, None] - mask.k_pos[:, None, :]
    row_BTS = jnp.clip(distance_BTS + S - 1, 0, 2 * S - 2)
    row_BNTS = jnp.broadcast_to(row_BTS[:, None], (*logits_BNTP.shape[:3], S))
    return jnp.take_along_axis(logits_BNTP, row_BNTS, axis=-1)

  def _type_logits(self, q_BTX: jax.Array, mask: StreamMask) -> jax.Array:
    """Compute (q_i + w) s_ij: float32 [B, N, T, S]."""
    dtype = q_BTX.dtype
    types_CNH = self._split_heads(self.types[...].astype(dtype))
    biased_q_BTNH = self._split_heads(q_BTX + self.type_bias[...].astype(dtype))
    logits_BNTC = wide_einsum("BTNH,CNH->BNTC", biased_q_BTNH, types_CNH)
    same_BNT1 = logits_BNTC[..., :1]
    different_BNT1 = logits_BNTC[..., 1:]
    differ_BTS = mask.q_types[:, :, None] != mask.k_types[:, None, :]
    return jnp.where(differ_BTS[:, None], different_BNT1, same_BNT1)

  def _split_heads(self, x: jax.Array) -> jax.Array:
    """Split the last axis into heads."""
    return x.reshape(*x.shape[:-1], -1, self.head_dim)


def sinusoids(distance_P: jax.Array, width: int) -> jax.Array:
  """Return sines, then cosines, of the distances at geometric frequencies, float32 [P, width]."""
  frequency = 10_000.0 ** (-jnp.arange(0, width, 2) / width)
  angle = distance_P[:, None].astype(jnp.float32) * frequency
  return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)
