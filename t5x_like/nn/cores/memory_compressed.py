"""Memory-compressed attention: keys and values shortened by a strided convolution (Liu et al. 2018,
https://arxiv.org/abs/1801.10198, section 4.2.3).

Cost, with a stride of C (3 in the paper): T * S / C logits per head in FLOPs and in memory, 1/C of
dense attention and still quadratic, and S * H * H multiplications per key/value head for each of
the two convolutions. Parameters: 2 * C * H * H per key/value head. A step against a cache
compresses the whole cache anew.
"""

import copy

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.cores import Core
from t5x_like.nn.cores._blocks import split_blocks
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.dims import Dims
from t5x_like.nn.mask import Mask
from t5x_like.slots import PositiveInt


class MemoryCompressed(Core):
  """Attention to one compressed key for every `stride` keys.

  The convolution's kernel is as long as its stride and mixes the channels of one key/value head, so
  that heads can be sharded. Padding counts as zeros, and fills up the last stride.

  Causal: a query sees a compressed key if it may see all tokens under it and none of them is
    padding. It does not see the tokens of its own incomplete stride (the paper alternates with
    local layers), so the first queries would see nothing. All queries therefore also see a null key
    and value per head, learned and initially zero. In packed rows the strides of each sequence
    begin at its own first token.
  Bidirectional: a compressed key is seen unless all tokens under it are padding; there is no null
    key, and no packing.

  Args:
    causal: whether the stack is causal.
    stride: number of keys compressed into one.
  """

  refuses = ("window", "prefix", "bias", "query_bias")

  def __init__(self, rngs: nnx.Rngs, dims: Dims, causal: bool, *, stride: PositiveInt = 3):
    K = dims.kv_heads
    H = dims.head_dim
    init = params.fan_in_normal(stride * H)
    axes = ("kv_heads", None, None, None)
    self.keys = params.param(rngs, init, (K, stride, H, H), axes)
    self.values = params.param(rngs, init, (K, stride, H, H), axes)
    self.null_key = params.param(rngs, params.zeros, (K, H), ("kv_heads", None)) if causal else None
    self.null_value = (
      params.param(rngs, params.zeros, (K, H), ("kv_heads", None)) if causal else None
    )
    self.causal = causal
    self.stride = stride
    # slots hold tokens in the order of their positions, with padding between them
    self.cached = False

  def attend(self, q, k, v, mask, softmax):
    if mask.causal != self.causal:
      mine, asked = ("causal", "bidirectional") if self.causal else ("bidirectional", "causal")
      raise self.refusal(f"{asked} attention in a core made for a {mine} stack")
    apart = mask.q_segments is not None
    if apart and not self.causal:
      raise self.refusal("packed sequences (segment ids) in a bidirectional stack")
    valid_BS = jnp.ones(mask.k_pos.shape, bool) if mask.k_valid is None else mask.k_valid
    if apart or self.cached:
      slots_BnC, valid_Bn = self._whole_strides(mask.k_pos, valid_BS)
      k_BnCKH, v_BnCKH = (_gathered(x, slots_BnC) for x in (k, v))
      pos_Bn = _gathered(mask.k_pos, slots_BnC[..., -1])
      q_segments, k_segments = (
        (mask.q_segments, _gathered(mask.k_segments, slots_BnC[..., -1])) if apart else (None,) * 2
      )
    else:
      n = -(-k.shape[1] // self.stride)
      seen = valid_BS[:, :, None, None]
      k_BnCKH, v_BnCKH = (
        split_blocks(jnp.where(seen, x, jnp.zeros_like(x)), n, self.stride) for x in (k, v)
      )
      valid_BnC = split_blocks(valid_BS, n, self.stride)
      pos_Bn = split_blocks(mask.k_pos, n, self.stride).max(-1)
      valid_Bn = valid_BnC.all(-1) if self.causal else valid_BnC.any(-1)
      q_segments = None
      k_segments = None
    k_BnKH, v_BnKH = (
      jnp.einsum("BnCKH,KCHI->BnKI", x, kernel[...].astype(x.dtype))
      for x, kernel in ((k_BnCKH, self.keys), (v_BnCKH, self.values))
    )
    if self.causal:
      k_BnKH = _behind(self.null_key, k_BnKH)
      v_BnKH = _behind(self.null_value, v_BnKH)
    kind = _BesideNull if self.causal else Mask
    compressed = kind(mask.q_pos, pos_Bn, q_segments, k_segments, valid_Bn, causal=self.causal)
    return Dense().attend(q, k_BnKH, v_BnKH, compressed, softmax)

  def _whole_strides(self, pos_BS: jax.Array, valid_BS: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Find the strides of which no token is missing.

    Returns:
      The slots of their tokens, int32 [B, S / stride, stride], and whether there is such a stride,
      bool [B, S / stride]
    """
    pos_BS, valid_BS = jnp.broadcast_arrays(pos_BS, valid_BS)
    order_BS = jnp.argsort(~valid_BS, axis=1, stable=True)  # tokens in their order, then padding
    pos_BS = _gathered(pos_BS, order_BS)
    valid_BS = _gathered(valid_BS, order_BS)
    last_BS = valid_BS & (pos_BS % self.stride == self.stride - 1)
    last_Bn = jnp.argsort(~last_BS, axis=1, stable=True)[:, : pos_BS.shape[1] // self.stride]
    token_BnC = last_Bn[..., None] + jnp.arange(1 - self.stride, 1)
    return _gathered(order_BS, jnp.maximum(token_BnC, 0)), _gathered(last_BS, last_Bn)

  def for_decoding(self) -> Core:
    if not self.causal:
      return super().for_decoding()
    other = copy.copy(self)
    other.cached = True
    return other


class _BesideNull(Mask):
  """A mask for keys behind a null key, which every query sees."""

  def dense(self) -> jax.Array:
    return jnp.pad(super().dense(), ((0, 0), (0, 0), (0, 0), (1, 0)), constant_values=True)


def _gathered(x: jax.Array, slots: jax.Array) -> jax.Array:
  """Gather along the second axis: x [b, S, ...] at slots [B, ...] gives [B, ..., ...]; b is B or
  1."""
  x = jnp.broadcast_to(x, (len(slots), *x.shape[1:]))
  flat = slots.reshape(len(slots), -1)
  found = jnp.take_along_axis(x, flat.reshape(*flat.shape, *(1,) * (x.ndim - 2)), axis=1)
  return found.reshape(*slots.shape, *x.shape[2:])


def _behind(null: nnx.Param, x_BSKH: jax.Array) -> jax.Array:
  """Prepend the null entry to `x`."""
  null = jnp.broadcast_to(null[...].astype(x_BSKH.dtype), (x_BSKH.shape[0], 1, *x_BSKH.shape[2:]))
  return jnp.concatenate([null, x_BSKH], axis=1)


make = MemoryCompressed
