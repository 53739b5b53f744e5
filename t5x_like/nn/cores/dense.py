"""The plain core, exact for every mask and bias: materialises the logits, [T, S] for each head."""

from functools import partial

import jax
import jax.numpy as jnp

from t5x_like.nn.cores import Core
from t5x_like.nn.linear import wide_einsum

MASKED_LOGIT = -1e10  # finite, so that rows without any allowed key stay finite


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _weights(logits_BNTS: jax.Array, allowed: jax.Array | None, dtype: jnp.dtype) -> jax.Array:
  """Compute a float32 softmax over the allowed keys.

  The backward pass keeps only the weights, rounded to `dtype`.
  """
  if allowed is not None:
    logits_BNTS = jnp.where(allowed, logits_BNTS, MASKED_LOGIT)
  return jax.nn.softmax(logits_BNTS, axis=-1).astype(dtype)


def _weights_forward(logits_BNTS, allowed, dtype):
  weights = _weights(logits_BNTS, allowed, dtype)
  return weights, (weights, allowed)


def _weights_backward(dtype, residuals, d_weights):
  weights, allowed = residuals
  probs = weights.astype(jnp.float32)
  d_logits = probs * (d_weights - jnp.sum(probs * d_weights, axis=-1, keepdims=True))
  if allowed is not None:
    d_logits = jnp.where(allowed, d_logits, 0.0)
  return d_logits, None


_weights.defvjp(_weights_forward, _weights_backward)


class Dense(Core):
  """Softmax attention (Vaswani et al. 2017, equation 1)."""

  exact = True
  weights = staticmethod(_weights)  # overridden by `Sinks`

  def attend(self, q, k, v, mask, softmax):
    B, T, N, H = q.shape
    K = k.shape[2]
    position = softmax.position
    logits_BKGTS = wide_einsum("BTKGH,BSKH->BKGTS", q.reshape(B, T, K, N // K, H), k)
    logits_BNTS = logits_BKGTS.reshape(B, N, T, -1)
    if position.query_dependent:  # such as Shaw's relative positions
      logits_BNTS = logits_BNTS + position.logits(q, mask.q_pos, mask.k_pos)
    logits_BNTS = softmax.cap(logits_BNTS)
    bias_BNTS = softmax.total_bias(mask.q_pos, mask.k_pos)
    if bias_BNTS is not None:
      logits_BNTS = logits_BNTS + bias_BNTS
    probs_BNTS = softmax.dropout(self.weights(logits_BNTS, mask.dense(), v.dtype), softmax.key)
    probs_BKGTS = probs_BNTS.reshape(B, K, N // K, T, -1)
    out_BTNH = jnp.einsum("BKGTS,BSKH->BTKGH", probs_BKGTS, v).reshape(B, T, N, -1)
    if position.query_dependent:
      out_BTNH = out_BTNH + position.values(probs_BNTS, mask.q_pos, mask.k_pos)
    return out_BTNH

  def for_decoding(self) -> "Dense":
    return self


make = Dense
