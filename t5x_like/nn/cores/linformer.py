"""Linformer: attention to a fixed number of keys and values, projected along the length: `softmax(q (E k)^T) (F v)`
(Wang et al. 2020, https://arxiv.org/abs/2006.04768, section 4).

Cost, with `k` projected keys: T * k logits per head and S * k * H multiplications per key/value head for each of the
two projections, all linear in the length, in FLOPs and in memory. Parameters: k * length for each projection.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.cores import Core
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.dims import Dims
from t5x_like.nn.mask import Mask, positions
from t5x_like.slots import Positive


class Linformer(Core):
  """Bidirectional attention to `k` learned mixtures of keys.

  Padding keys count as zeros. A sequence shorter than `length` uses the first columns of the projections; a longer one
  is refused.

  Args:
    k: number of projected keys.
    length: length of the longest sequence.
    share: "none": every key/value head has its own E and F; "headwise": one E and one F for all heads of the layer;
      "kv": a single matrix for both (section 4, "parameter sharing"). Layerwise sharing is not supported.
    start: initial projections. "random": mixtures of all keys, with variance 1/length; "pooling": each pools length/k
      neighbours (section 4, "general projections"), which tells positions apart from the first step on. Both preserve
      the scale of keys.
  """

  refuses = ("causal", "window", "segments", "prefix", "bias", "query_bias")

  def __init__(
    self,
    rngs: nnx.Rngs,
    dims: Dims,
    *,
    k: Positive = 256,
    length: Positive = 512,
    share: Literal["none", "headwise", "kv"] = "headwise",
    start: Literal["random", "pooling"] = "random",
  ):
    shape, axes = (k, length), (None, None)
    if share == "none":
      shape, axes = (dims.kv_heads, *shape), ("kv_heads", *axes)
    init = params.fan_in_normal(length) if start == "random" else _pooling
    self.keys = params.param(rngs, init, shape, axes)
    self.values = None if share == "kv" else params.param(rngs, init, shape, axes)
    self.k = k
    self.length = length

  def attend(self, q, k, v, mask, softmax):
    S = k.shape[1]
    if S > self.length:
      raise UserError(
        f"attention core 'linformer': found {S} keys, expected at most {self.length}; shorten the "
        "sequences or give it a larger 'length'"
      )
    values = self.keys if self.values is None else self.values
    k, v = _project(self.keys, k, mask.k_valid), _project(values, v, mask.k_valid)
    return Dense().attend(q, k, v, Mask(mask.q_pos, positions(self.k)), softmax)


def _pooling(key: jax.Array, shape: tuple[int, ...], dtype) -> jax.Array:
  """Return [..., k, length]: row i sums its share of the columns, divided by the square root of their number."""
  k, length = shape[-2:]
  owner = jnp.arange(length) * k // length
  one_hot = (owner == jnp.arange(k)[:, None]).astype(dtype)
  return jnp.broadcast_to(one_hot / jnp.sqrt(jnp.maximum(one_hot.sum(-1, keepdims=True), 1)), shape)


def _project(matrix: nnx.Param, x_BSKH: jax.Array, valid_BS: jax.Array | None) -> jax.Array:
  """Project `x` along its length, in its dtype; return [B, k, K, H]."""
  if valid_BS is not None:
    x_BSKH = jnp.where(valid_BS[:, :, None, None], x_BSKH, jnp.zeros_like(x_BSKH))
  weights = matrix[...][..., : x_BSKH.shape[1]].astype(x_BSKH.dtype)
  # In this order: XLA for CPU fails on the product of a bfloat16 product whose first factor has no batch.
  return jnp.einsum("BSKH,KPS->BPKH" if weights.ndim == 3 else "BSKH,PS->BPKH", x_BSKH, weights)


make = Linformer
