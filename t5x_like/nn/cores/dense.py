"""The plain core: materialises the [T, S] logits. Exact for every mask and bias; memory grows with T * S."""

import jax
import jax.numpy as jnp

from t5x_like.nn.dims import dropout
from t5x_like.nn.mask import Mask

NEGATIVE = -1e10  # finite, so that a row without any allowed key stays finite


def dense(
  q_BTNH: jax.Array,
  k_BSKH: jax.Array,
  v_BSKH: jax.Array,
  mask: Mask,
  bias_BNTS: jax.Array | None,
  *,
  scale: float,
  dropout_rate: float = 0.0,
  key: jax.Array | None = None,
) -> jax.Array:
  """Softmax attention (Vaswani et al. 2017, equation 1), with grouped key/value heads.

  Logits and softmax are float32 whatever the dtype of the inputs.

  Returns:
    [B, T, N, H] in the dtype of `q`.
  """
  B, T, N, H = q_BTNH.shape
  K = k_BSKH.shape[2]
  q_BTKGH = (q_BTNH * scale).reshape(B, T, K, N // K, H)
  logits = jnp.einsum("BTKGH,BSKH->BKGTS", q_BTKGH, k_BSKH, preferred_element_type=jnp.float32)
  logits_BNTS = logits.reshape(B, N, T, -1)
  if bias_BNTS is not None:
    logits_BNTS = logits_BNTS + bias_BNTS
  allowed = mask.dense()
  if allowed is not None:
    logits_BNTS = jnp.where(allowed, logits_BNTS, NEGATIVE)
  probs_BNTS = jax.nn.softmax(logits_BNTS, axis=-1).astype(v_BSKH.dtype)
  probs_BNTS = dropout(probs_BNTS, dropout_rate, key)
  probs = probs_BNTS.reshape(B, K, N // K, T, -1)
  return jnp.einsum("BKGTS,BSKH->BTKGH", probs, v_BSKH).reshape(B, T, N, H)
