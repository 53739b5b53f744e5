"""The plain core: materialises the [T, S] logits. Exact for every mask and bias; memory grows with T * S."""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn.cores import Core, position_bias
from t5x_like.nn.dims import dropout
from t5x_like.nn.mask import Mask

NEGATIVE = -1e10  # finite, so that a row without any allowed key stays finite


class Dense(Core):
  name = "dense"

  def __call__(
    self,
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    mask: Mask,
    bias=None,
    position=None,
    *,
    scale: float,
    softcap: float | None = None,
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
    q_BTNH = q_BTNH * scale
    q_BTKGH = q_BTNH.reshape(B, T, K, N // K, H)
    logits = jnp.einsum("BTKGH,BSKH->BKGTS", q_BTKGH, k_BSKH, preferred_element_type=jnp.float32)
    logits_BNTS = logits.reshape(B, N, T, -1)
    if position is not None and position.query_dependent:
      logits_BNTS = logits_BNTS + position.logits(q_BTNH, mask.q_pos, mask.k_pos)
    if softcap is not None:
      logits_BNTS = softcap * jnp.tanh(logits_BNTS / softcap)
    bias_BNTS = position_bias(bias, position, mask.q_pos, mask.k_pos)
    if bias_BNTS is not None:
      logits_BNTS = logits_BNTS + bias_BNTS
    allowed = mask.dense()
    if allowed is not None:
      logits_BNTS = jnp.where(allowed, logits_BNTS, NEGATIVE)
    probs_BNTS = jax.nn.softmax(logits_BNTS, axis=-1).astype(v_BSKH.dtype)
    probs_BNTS = dropout(probs_BNTS, dropout_rate, key)
    probs = probs_BNTS.reshape(B, K, N // K, T, -1)
    out_BTNH = jnp.einsum("BKGTS,BSKH->BTKGH", probs, v_BSKH).reshape(B, T, N, H)
    if position is not None and position.query_dependent:
      out_BTNH = out_BTNH + position.values(probs_BNTS, mask.q_pos, mask.k_pos)
    return out_BTNH

  def decoding(self) -> "Dense":
    return self


def make(rngs: nnx.Rngs, sizes: dict) -> Dense:
  return Dense()
