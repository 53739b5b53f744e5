"""Memory-compressed attention: keys and values shortened by a strided convolution.

It follows Liu et al. 2018 (https://arxiv.org/abs/1801.10198, section 4.2.3).

Cost with a stride of C (3 in the paper):

- T * S / C logits per head, in FLOPs and in memory: 1/C of dense attention, still quadratic.
- S * H * H multiplications per key/value head for each of the two convolutions.
- 2 * C * H * H parameters per key/value head.

Each step of decoding from a cache compresses the whole cache again.
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
    if causal:
      self.null_key = params.param(rngs, params.zeros, (K, H), ("kv_heads", None))
      self.null_value = params.param(rngs, params.zeros, (K, H), ("kv_heads", None))
    else:
      self.null_key = None
      self.null_value = None
    self.causal = causal
    self.stride = stride
    # Whether keys are slots of a cache, which may have padding between the tokens of a sequence.
    self.cached = False

  def attend(self, q, k, v, mask, softmax):
    if mask.causal != self.causal:
      call_kind = "causal" if mask.causal else "bidirectional"
      stack_kind = "causal" if self.causal else "bidirectional"
      raise self.refusal(f"{call_kind} attention in a core made for a {stack_kind} stack")
    is_packed = mask.q_segments is not None
    if is_packed and not self.causal:
      raise self.refusal("packed sequences (segment ids) in a bidirectional stack")
    if is_packed or self.cached:
      k_BnCKH, v_BnCKH, compressed_mask = self._cut_by_position(k, v, mask)
    else:
      k_BnCKH, v_BnCKH, compressed_mask = self._cut_by_slot(k, v, mask)
    k_BnKH = _compress(k_BnCKH, self.keys)
    v_BnKH = _compress(v_BnCKH, self.values)
    if self.causal:
      k_BnKH = _prepend_null(self.null_key, k_BnKH)
      v_BnKH = _prepend_null(self.null_value, v_BnKH)
    return Dense().attend(q, k_BnKH, v_BnKH, compressed_mask, softmax)

  def _cut_by_position(
    self, k_BSKH: jax.Array, v_BSKH: jax.Array, mask: Mask
  ) -> tuple[jax.Array, jax.Array, Mask]:
    """Cut keys and values into the whole strides of each sequence, and build their mask."""
    slots_BnC, valid_Bn = self._whole_strides(mask.k_pos, _valid_keys(mask))
    last_slot_Bn = slots_BnC[..., -1]
    k_segments = None
    if mask.q_segments is not None:
      k_segments = _gather(mask.k_segments, last_slot_Bn)
    compressed_mask = self._mask(
      mask, _gather(mask.k_pos, last_slot_Bn), valid_Bn, mask.q_segments, k_segments
    )
    return _gather(k_BSKH, slots_BnC), _gather(v_BSKH, slots_BnC), compressed_mask

  def _cut_by_slot(
    self, k_BSKH: jax.Array, v_BSKH: jax.Array, mask: Mask
  ) -> tuple[jax.Array, jax.Array, Mask]:
    """Cut keys and values of unpacked rows into strides of slots, and build their mask."""
    n = -(-k_BSKH.shape[1] // self.stride)
    valid_BS = _valid_keys(mask)
    valid_BS11 = valid_BS[:, :, None, None]
    k_BSKH = jnp.where(valid_BS11, k_BSKH, jnp.zeros_like(k_BSKH))
    v_BSKH = jnp.where(valid_BS11, v_BSKH, jnp.zeros_like(v_BSKH))
    pos_Bn = split_blocks(mask.k_pos, n, self.stride).max(-1)
    valid_BnC = split_blocks(valid_BS, n, self.stride)
    valid_Bn = valid_BnC.all(-1) if self.causal else valid_BnC.any(-1)
    return (
      split_blocks(k_BSKH, n, self.stride),
      split_blocks(v_BSKH, n, self.stride),
      self._mask(mask, pos_Bn, valid_Bn),
    )

  def _mask(
    self, mask: Mask, pos_Bn: jax.Array, valid_Bn: jax.Array, q_segments=None, k_segments=None
  ) -> Mask:
    """Return the mask from the queries to the compressed keys."""
    mask_class = _MaskWithNullKey if self.causal else Mask
    return mask_class(mask.q_pos, pos_Bn, q_segments, k_segments, valid_Bn, causal=self.causal)

  def _whole_strides(self, pos_BS: jax.Array, valid_BS: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Find the complete strides, and move them to the front.

    Returns:
      The slots of each stride's tokens, int32 [B, S / stride, stride], and whether the stride
      exists, bool [B, S / stride].
    """
    pos_BS, valid_BS = jnp.broadcast_arrays(pos_BS, valid_BS)
    order_BS = jnp.argsort(~valid_BS, axis=1, stable=True)  # tokens in their order, then padding
    pos_BS = _gather(pos_BS, order_BS)
    valid_BS = _gather(valid_BS, order_BS)
    # Stable sorting moves the last tokens of strides to the front, in their order.
    last_BS = valid_BS & (pos_BS % self.stride == self.stride - 1)
    last_Bn = jnp.argsort(~last_BS, axis=1, stable=True)[:, : pos_BS.shape[1] // self.stride]
    token_BnC = last_Bn[..., None] + jnp.arange(1 - self.stride, 1)
    return _gather(order_BS, jnp.maximum(token_BnC, 0)), _gather(last_BS, last_Bn)

  def for_decoding(self) -> Core:
    if not self.causal:
      return super().for_decoding()
    cached_core = copy.copy(self)
    cached_core.cached = True
    return cached_core


class _MaskWithNullKey(Mask):
  """A mask for keys that follow a null key, which every query sees."""

  def dense(self) -> jax.Array:
    return jnp.pad(super().dense(), ((0, 0), (0, 0), (0, 0), (1, 0)), constant_values=True)


def _valid_keys(mask: Mask) -> jax.Array:
  if mask.k_valid is None:
    return jnp.ones(mask.k_pos.shape, bool)
  return mask.k_valid


def _compress(x_BnCKH: jax.Array, kernel: nnx.Param) -> jax.Array:
  return jnp.einsum("BnCKH,KCHI->BnKI", x_BnCKH, kernel[...].astype(x_BnCKH.dtype))


def _gather(x: jax.Array, slots: jax.Array) -> jax.Array:
  """Gather along the second axis: x [B or 1, S, ...] at slots [B, ...] gives [B, ..., ...]."""
  x = jnp.broadcast_to(x, (len(slots), *x.shape[1:]))
  indices = slots.reshape(len(slots), -1, *[1] * (x.ndim - 2))
  return jnp.take_along_axis(x, indices, axis=1).reshape(*slots.shape, *x.shape[2:])


def _prepend_null(null: nnx.Param, x_BSKH: jax.Array) -> jax.Array:
  """Prepend the null entry to `x`."""
  null = jnp.broadcast_to(null[...].astype(x_BSKH.dtype), (x_BSKH.shape[0], 1, *x_BSKH.shape[2:]))
  return jnp.concatenate([null, x_BSKH], axis=1)


make = MemoryCompressed
