"""Memory-compressed attention: keys and values shortened by a strided convolution (Liu et al. 2018,
https://arxiv.org/abs/1801.10198, section 4.2.3).

Cost, with a stride of C (3 in the paper): T * S / C logits per head in FLOPs and in memory, 1/C of dense attention and
still quadratic, and S * H * H multiplications per key/value head for each of the two convolutions. Parameters:
2 * C * H * H per key/value head.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.cores import Core
from t5x_like.nn.cores._blocks import blocked
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.dims import Dims
from t5x_like.nn.mask import Mask
from t5x_like.slots import Positive


class MemoryCompressed(Core):
  """Attention to one compressed key for every `stride` keys in adjacent slots.

  The convolution's kernel is as long as its stride and mixes the channels of one key/value head, so that heads can be
  sharded. Padding counts as zeros, and fills up the last stride.

  Causal: a query sees a compressed key if it may see all tokens under it and none of them is padding. It does not see
  the tokens of its own incomplete stride (the paper alternates with local layers), so the first queries would see
  nothing. All queries therefore also see a null key and value per head, learned and initially zero.
  Bidirectional: a compressed key is seen unless all tokens under it are padding; there is no null key.

  Args:
    causal: whether the stack is causal.
    stride: number of keys compressed into one.
  """

  refuses = ("window", "segments", "prefix", "bias", "query_bias")

  def __init__(self, rngs: nnx.Rngs, dims: Dims, causal: bool, *, stride: Positive = 3):
    K, H = dims.kv_heads, dims.head_dim
    init, axes = params.fan_in_normal(stride * H), ("kv_heads", None, None, None)
    self.keys = params.param(rngs, init, (K, stride, H, H), axes)
    self.values = params.param(rngs, init, (K, stride, H, H), axes)
    self.null_key = params.param(rngs, params.zeros, (K, H), ("kv_heads", None)) if causal else None
    self.null_value = params.param(rngs, params.zeros, (K, H), ("kv_heads", None)) if causal else None
    self.causal = causal
    self.stride = stride

  def attend(self, q, k, v, mask, softmax):
    if mask.causal != self.causal:
      mine, asked = ("causal", "bidirectional") if self.causal else ("bidirectional", "causal")
      raise self.refusal(f"{asked} attention in a core made for a {mine} stack")
    S = k.shape[1]
    n = -(-S // self.stride)
    valid_BS = jnp.ones((1, S), bool) if mask.k_valid is None else mask.k_valid
    valid = blocked(valid_BS, n, self.stride)
    valid = valid.all(-1) if self.causal else valid.any(-1)
    pos = blocked(mask.k_pos, n, self.stride).max(-1)
    k, v = self._compress(self.keys, k, valid_BS), self._compress(self.values, v, valid_BS)
    if self.causal:
      k, v = _behind(self.null_key, k), _behind(self.null_value, v)
      pos = jnp.pad(pos, ((0, 0), (1, 0)), constant_values=-1)
      valid = jnp.pad(valid, ((0, 0), (1, 0)), constant_values=True)
    compressed = Mask(mask.q_pos, pos, k_valid=valid, causal=self.causal)
    return Dense().attend(q, k, v, compressed, softmax)

  def _compress(self, kernel: nnx.Param, x_BSKH: jax.Array, valid_BS: jax.Array) -> jax.Array:
    """Compress `x` to [B, ceil(S / stride), K, H], in its dtype."""
    x_BSKH = jnp.where(valid_BS[:, :, None, None], x_BSKH, jnp.zeros_like(x_BSKH))
    x = blocked(x_BSKH, -(-x_BSKH.shape[1] // self.stride), self.stride)
    return jnp.einsum("BnCKH,KCHI->BnKI", x, kernel[...].astype(x.dtype))


def _behind(null: nnx.Param, x_BSKH: jax.Array) -> jax.Array:
  """Prepend the null entry to `x`."""
  null = jnp.broadcast_to(null[...].astype(x_BSKH.dtype), (x_BSKH.shape[0], 1, *x_BSKH.shape[2:]))
  return jnp.concatenate([null, x_BSKH], axis=1)


make = MemoryCompressed
