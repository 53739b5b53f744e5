"""TPU splash attention by JAX's Pallas kernels, which skip blocks that the mask hides.

A mask hides blocks by causality or by a window. The kernels are in
`jax.experimental.pallas.ops.tpu.splash_attention` (Dao et al. 2022 with a sparse grid of blocks).
On other platforms they run in Pallas' interpreter: correct, but very slow.

Cost: 4 H FLOPs per head for each logit of the computed blocks in the forward pass, 2.5 times as
  many in the backward pass. Memory: O(T + S). Lengths are padded to a multiple of the block, head
  widths above 128 to a multiple of 128. Narrower heads take as long as heads of 128.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.nn.cores._blocks import pad_to
from t5x_like.nn.cores._devices import PerDevice
from t5x_like.parallel.constrain import platform

LANES = 128  # a TPU's vector registers are this wide
# prefix of the kernels' named scope, with the FLOPs of a forward pass, for plans
FLOPS_SCOPE_PREFIX = "kernel_flops_"


class Splash(PerDevice):
  """Equal to the dense core for every query that sees a key; refuses biases and dropout.

  Causal attention and windows need positions that grow by one from slot to slot, as in training
  (`Mask.aligned`), and whole sequences on each device.

  Args:
    block: tokens in a block, a multiple of 128; shorter sequences are one block.
  """

  refuses = ("prefix", "bias", "query_bias", "dropout")
  exact = True

  def __init__(self, *, block: int = 512):
    self.block = block

  def label(self, q_BTNH):
    H = q_BTNH.shape[-1]
    width = _kernel_width(H)
    return self.name if width == H else f"{self.name} (head width {H} padded to {width})"

  def attend(self, q, k, v, mask, softmax):
    B, T, N, H = q.shape
    S = k.shape[1]
    if (mask.causal or mask.window is not None) and not (
      mask.aligned and softmax.device_slice.has_all_queries
    ):
      raise self.refusal(
        "causality or windows over explicit positions or queries split over devices"
      )
    t = min(self.block, _round_up(T, LANES))
    s = min(self.block, _round_up(S, LANES))
    rows = _round_up(T, t)
    columns = _round_up(S, s)

    window = None
    if mask.window is not None:
      window = (mask.window - 1, 0 if mask.causal else mask.window - 1)
    interpreted = platform() != "tpu"
    kernel = _kernel((rows, columns), (t, s), N, mask.causal, window, softmax.softcap, interpreted)

    def kernel_layout(x_BLNH, length):
      """Transpose and pad to [B, N, length, width]."""
      x_BNLH = pad_to(x_BLNH.swapaxes(1, 2), length, 2)
      return pad_to(x_BNLH, _kernel_width(x_BLNH.shape[-1]), 3)

    segments = _segments(mask, B, T, S, rows, columns)
    if segments is not None:
      from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_kernel import (
        SegmentIds,
      )

      segments = SegmentIds(*segments)
    lanes = _round_up(H, LANES)  # a narrower head leaves units idle
    flops = 4 * B * N * lanes * _count_logits(kernel, rows * columns, t * s)
    with jax.named_scope(f"{FLOPS_SCOPE_PREFIX}{flops}"):
      out = jax.vmap(kernel)(
        kernel_layout(q, rows), kernel_layout(k, columns), kernel_layout(v, columns), segments
      )
    return out[:, :, :T, : v.shape[-1]].swapaxes(1, 2)


def _round_up(size: int, multiple: int) -> int:
  return -(-size // multiple) * multiple


def _kernel_width(width: int) -> int:
  """Return the head width that the kernels take: a multiple of 8 up to 128, or of 128."""
  return _round_up(width, LANES if width > LANES else 8)


# The layers of a model share one kernel: computing the blocks of a long mask takes seconds.
@functools.lru_cache(maxsize=16)
def _kernel(shape, block, heads: int, causal: bool, window, cap: float | None, interpreted: bool):
  """Build a differentiable kernel `(q [N, T, H], k, v [K, S, H], segments) -> [N, T, H]`."""
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

  mask = masks.CausalMask(shape) if causal else masks.FullMask(shape)
  if window is not None:
    mask = masks.LocalMask(shape, window, 0)
  q, kv = block
  passes = dict(
    block_q_dkv=q, block_kv_dkv=kv, block_kv_dkv_compute=kv, block_q_dq=q, block_kv_dq=kv
  )
  with jax.ensure_compile_time_eval():
    return kernels.make_splash_mha(
      masks.MultiHeadMask([mask] * heads),
      block_sizes=kernels.BlockSizes(block_q=q, block_kv=kv, **passes),
      head_shards=1,
      q_seq_shards=1,
      attn_logits_soft_cap=cap,
      residual_checkpoint_name="context",
      interpret=interpreted,
    )


def _count_logits(kernel, logits: int, block: int) -> int:
  """Count the logits of a head that the kernel computes, outside of the blocks its mask hides."""
  blocks = kernel.fwd_mask_info.block_mask
  if blocks is None:
    return logits
  return int((np.asarray(blocks)[0] > 0).sum()) * block


def _segments(
  mask, B: int, T: int, S: int, rows: int, columns: int
) -> tuple[jax.Array, jax.Array] | None:
  """Return the segments of queries and keys, int32 [B, rows] and [B, columns].

  Keys that no query sees have segment -1. Return None if no segments are needed: causality already
  hides the core's own padding from all queries.
  """
  if mask.q_segments is None and mask.k_valid is None and (S == columns or mask.causal):
    return None
  q_segments = mask.q_segments
  k_segments = mask.k_segments
  if q_segments is None:
    q_segments = jnp.ones((1, 1), jnp.int32)
    k_segments = jnp.ones((1, 1), jnp.int32)
  if mask.k_valid is not None:
    k_segments = jnp.where(mask.k_valid, k_segments, -1)
  q_segments = pad_to(jnp.broadcast_to(q_segments, (B, T)), rows)
  padding = ((0, 0), (0, columns - S))
  k_segments = jnp.pad(jnp.broadcast_to(k_segments, (B, S)), padding, constant_values=-1)
  return q_segments.astype(jnp.int32), k_segments.astype(jnp.int32)


make = Splash
