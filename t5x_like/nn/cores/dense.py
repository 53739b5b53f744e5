"""The plain core: materialises the [T, S] logits. Exact for every mask and bias; memory grows with
T * S."""

from functools import partial

import jax
import jax.numpy as jnp

from t5x_like.nn.cores import Core
from t5x_like.nn.linear import wide_einsum

MASKED_LOGIT = -1e10  # finite, so that rows without any allowed key stay finite


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _weights(logits_BNTS: jax.Array, allowed: jax.Array | None, dtype: jnp.dtype) -> jax.Array:
  """Compute a float32 softmax over the allowed keys. The backward pass keeps only the weights,
  rounded to `dtype`."""
  seen_BNTS = logits_BNTS if allowed is None else jnp.where(allowed, logits_BNTS, MASKED_LOGIT)
  return jax.nn.softmax(seen_BNTS, axis=-1).astype(dtype)


def _weights_backward(dtype, kept, g):
  probs = kept[0].astype(jnp.float32)
  allowed = kept[1]
  g = probs * (g - jnp.sum(probs * g, axis=-1, keepdims=True))
  return (g if allowed is None else jnp.where(allowed, g, 0.0)), None


_weights.defvjp(lambda *of: ((rounded := _weights(*of)), (rounded, of[1])), _weights_backward)


class Dense(Core):
  """Softmax attention (Vaswani et al. 2017, equation 1)."""

  exact = True
  weights = staticmethod(_weights)

  def attend(self, q, k, v, mask, softmax):
    (B, T, N, H), K, position = q.shape, k.shape[2], softmax.position
    logits_BNTS = wide_einsum("BTKGH,BSKH->BKGTS", q.reshape(B, T, K, N // K, H), k).reshape(
      B, N, T, -1
    )
    if position.query_dependent:
      logits_BNTS = logits_BNTS + position.logits(q, mask.q_pos, mask.k_pos)
    logits_BNTS = softmax.cap(logits_BNTS)
    if (bias_BNTS := softmax.total_bias(mask.q_pos, mask.k_pos)) is not None:
      logits_BNTS = logits_BNTS + bias_BNTS
    probs_BNTS = softmax.dropout(self.weights(logits_BNTS, mask.dense(), v.dtype), softmax.key)
    out_BTNH = jnp.einsum("BKGTS,BSKH->BTKGH", probs_BNTS.reshape(B, K, N // K, T, -1), v).reshape(
      B, T, N, -1
    )
    if position.query_dependent:
      out_BTNH = out_BTNH + position.values(probs_BNTS, mask.q_pos, mask.k_pos)
    return out_BTNH

  def for_decoding(self) -> "Dense":
    return self


make = Dense
