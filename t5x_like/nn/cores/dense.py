"""The plain core: materialises the [T, S] logits. Exact for every mask and bias; memory grows with T * S."""

import jax
import jax.numpy as jnp

from t5x_like.nn.cores import Core
from t5x_like.nn.linear import wide_einsum

NEGATIVE = -1e10  # finite, so that rows without any allowed key stay finite


class Dense(Core):
  """Softmax attention (Vaswani et al. 2017, equation 1)."""

  exact = True

  def attend(self, q, k, v, mask, softmax):
    (B, T, N, H), K, position = q.shape, k.shape[2], softmax.position
    q_BTKGH = q.reshape(B, T, K, N // K, H)
    logits = wide_einsum("BTKGH,BSKH->BKGTS", q_BTKGH, k)
    logits_BNTS = logits.reshape(B, N, T, -1)
    if position.query_dependent:
      logits_BNTS = logits_BNTS + position.logits(q, mask.q_pos, mask.k_pos)
    logits_BNTS = softmax.capped(logits_BNTS)
    if (bias_BNTS := softmax.biases(mask.q_pos, mask.k_pos)) is not None:
      logits_BNTS = logits_BNTS + bias_BNTS
    if (allowed := mask.dense()) is not None:
      logits_BNTS = jnp.where(allowed, logits_BNTS, NEGATIVE)
    probs_BNTS = softmax.dropout(jax.nn.softmax(logits_BNTS, axis=-1).astype(v.dtype), softmax.key)
    probs = probs_BNTS.reshape(B, K, N // K, T, -1)
    out_BTNH = jnp.einsum("BKGTS,BSKH->BTKGH", probs, v).reshape(B, T, N, H)
    if position.query_dependent:
      out_BTNH = out_BTNH + position.values(probs_BNTS, mask.q_pos, mask.k_pos)
    return out_BTNH

  def decoding(self) -> "Dense":
    return self


make = Dense
