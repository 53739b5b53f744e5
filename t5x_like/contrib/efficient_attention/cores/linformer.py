"""Linformer: attention to a fixed number of keys and values, projected along the length.

It computes `softmax(q (E k)^T) (F v)` (Wang et al. 2020, https://arxiv.org/abs/2006.04768, section
4).

Cost, with `k` projected keys: T * k logits per head and S * k * H multiplications per key/value
head for each of the two projections, all linear in the length, in FLOPs and in memory; packed rows
multiply the cost by `sequences`. Parameters: k * length for each projection.
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
from t5x_like.nn.shared_stack import copy_attributes
from t5x_like.nn.stack import Stack
from t5x_like.slots import NonNegativeInt, PositiveInt


class Linformer(Core):
  """Bidirectional attention to `k` learned mixtures of keys.

  Padding keys count as zeros. A sequence shorter than `length` uses the first columns of the
  projections; a longer one is refused.

  Args:
    k: number of projected keys.
    length: length of the longest sequence.
    share: "none": every key/value head has its own E and F; "headwise": one E and one F for all
      heads of the layer; "kv": a single matrix for both; "layerwise": a single matrix for all
      layers of the stack (section 4, "parameter sharing": of 12 layers 24, 12 and 1 matrices).
    start: initial projections. "random": mixtures of all keys, with variance 1/length; "pooling":
      each pools length/k neighbours (section 4, "general projections"), which distinguishes
      positions from the first step on. Both preserve the scale of keys.
    sequences: the most sequences of a packed row, each of which is projected by its own positions;
      0 refuses packing. Beyond them results are NaN, which stops a run.
  """

  refuses = ("causal", "window", "prefix", "bias", "query_bias")

  def __init__(
    self,
    rngs: nnx.Rngs,
    dims: Dims,
    *,
    k: PositiveInt = 256,
    length: PositiveInt = 512,
    share: Literal["none", "headwise", "kv", "layerwise"] = "headwise",
    start: Literal["random", "pooling"] = "random",
    sequences: NonNegativeInt = 0,
  ):
    shape = (k, length)
    axes = (None, None)
    if share == "none":
      shape = (dims.kv_heads, *shape)
      axes = ("kv_heads", *axes)
    self.init = params.fan_in_normal(length) if start == "random" else _pooling
    self.layerwise = share == "layerwise"  # `keys` then comes from the stack
    self.keys = None if self.layerwise else params.param(rngs, self.init, shape, axes)
    separate_values = share in ("none", "headwise")
    self.values = params.param(rngs, self.init, shape, axes) if separate_values else None
    self.k = k
    self.length = length
    self.sequences = sequences

  def wrap_stack(self, stack, rngs):
    if not self.layerwise:
      return stack
    shape = (self.k, self.length)
    if not isinstance(stack, ProjectedStack):
      return ProjectedStack(stack, params.param(rngs, self.init, shape, (None, None)))
    if stack.projection.shape != shape:
      raise UserError(
        f"config.model.design.core: found 'layerwise' projections of {shape} and "
        f"{stack.projection.shape}, expected one size; give these cores the same 'k' and 'length'"
      )
    return stack

  def attend(self, q, k, v, mask, softmax):
    S = k.shape[1]
    if self.keys is None:
      raise UserError(
        "config.model.design.core.share: found 'layerwise', which the stack of this family does "
        "not take; set it to 'kv'"
      )
    if S > self.length:
      raise UserError(
        f"attention core 'linformer': found {S} keys, expected at most {self.length}; shorten the "
        "sequences or give it a larger 'length'"
      )
    values = self.keys if self.values is None else self.values
    if mask.q_segments is not None:
      return self._attend_packed(q, (k, self.keys), (v, values), mask, softmax)
    k = _project(self.keys, k, mask.k_valid)
    v = _project(values, v, mask.k_valid)
    return Dense().attend(q, k, v, Mask(mask.q_pos, positions(self.k)), softmax)

  def _attend_packed(self, q, keys, values, mask, softmax):
    """Attend in packed rows, from `keys` and `values` with their matrices."""
    if not self.sequences:
      raise self.refusal(
        "packed sequences (segment ids) unless 'sequences' says how many a row may have"
      )
    numbers_G = jnp.arange(1, self.sequences + 1)
    in_sequence_BSG = mask.k_segments[..., None] == numbers_G
    if mask.k_valid is not None:
      in_sequence_BSG = in_sequence_BSG & mask.k_valid[..., None]
    pos_BS = jnp.broadcast_to(mask.k_pos, in_sequence_BSG.shape[:2])
    k = _project_packed(*keys, pos_BS, in_sequence_BSG)
    v = _project_packed(*values, pos_BS, in_sequence_BSG)
    k_segments = jnp.repeat(numbers_G, self.k)[None]
    projected = Mask(mask.q_pos, positions(k.shape[1]), mask.q_segments, k_segments)
    out_BTNH = Dense().attend(q, k, v, projected, softmax)
    return jnp.where((mask.q_segments > self.sequences)[..., None, None], jnp.nan, out_BTNH)


class ProjectedStack(Stack):
  """A stack that shares one matrix with the cores of all its layers (section 4, "layerwise").

  Args:
    stack: the stack whose parts this one takes over.
    projection: the matrix, [k, length].
  """

  def __init__(self, stack: Stack, projection: nnx.Param):
    copy_attributes(self, stack)
    self.projection = projection

  def _run(self, blocks, *args):
    layers = jax.tree.leaves(blocks)[0].shape[0]
    projections = jnp.broadcast_to(self.projection[...], (layers, *self.projection.shape))

    def with_projection(part):
      if isinstance(part, Linformer) and part.layerwise:
        part = jax.tree.map(lambda x: x, part)  # a new one, of this trace
        part.keys = nnx.data(nnx.Param(projections))
      return part

    blocks = jax.tree.map(with_projection, blocks, is_leaf=lambda part: isinstance(part, Linformer))
    return super()._run(blocks, *args)


def _pooling(key: jax.Array, shape: tuple[int, ...], dtype) -> jax.Array:
  """Return [..., k, length]: row i sums its share of the columns, divided by sqrt(their number)."""
  k, length = shape[-2:]
  owner = jnp.arange(length) * k // length
  one_hot = (owner == jnp.arange(k)[:, None]).astype(dtype)
  columns = jnp.maximum(one_hot.sum(-1, keepdims=True), 1)
  return jnp.broadcast_to(one_hot / jnp.sqrt(columns), shape)


def _project(matrix: nnx.Param, x_BSKH: jax.Array, valid_BS: jax.Array | None) -> jax.Array:
  """Project `x` along its length, in its dtype; return [B, k, K, H]."""
  if valid_BS is not None:
    x_BSKH = jnp.where(valid_BS[:, :, None, None], x_BSKH, jnp.zeros_like(x_BSKH))
  weights = matrix[...][..., : x_BSKH.shape[1]].astype(x_BSKH.dtype)
  # In this order: XLA for CPU fails on the product of a bfloat16 product whose first factor has no
  # batch.
  equation = "BSKH,KPS->BPKH" if weights.ndim == 3 else "BSKH,PS->BPKH"
  return jnp.einsum(equation, x_BSKH, weights)


def _project_packed(
  x_BSKH: jax.Array, matrix: nnx.Param, pos_BS: jax.Array, in_sequence_BSG: jax.Array
) -> jax.Array:
  """Project each sequence of packed rows along its own positions: [B, G * k, K, H]."""
  weights = jnp.take(matrix[...].astype(x_BSKH.dtype), pos_BS, axis=-1, mode="clip")
  equation = "BSKH,BSG,KPBS->BGPKH" if weights.ndim == 4 else "BSKH,BSG,PBS->BGPKH"
  y_BGPKH = jnp.einsum(equation, x_BSKH, in_sequence_BSG.astype(x_BSKH.dtype), weights)
  return y_BGPKH.reshape(y_BGPKH.shape[0], -1, *y_BGPKH.shape[3:])


make = Linformer
