"""Attention with a sink: each head has a learned logit that takes weight and has no value.

Sinks are described in OpenAI 2025 (gpt-oss model card, https://arxiv.org/abs/2508.10925, section
2.2) and Xiao et al. 2024. The weights are `exp(logit_s) / (exp(sink) + sum_s exp(logit_s))`. Up to
`auto.MAX_DENSE_LOGITS` logits a head, they are materialised; beyond, blocks of logits are computed
one by one, as in the chunked core.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.cores import _blockwise as blockwise
from t5x_like.nn.cores._devices import PerDevice
from t5x_like.nn.cores.auto import MAX_DENSE_LOGITS
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.dims import Dims
from t5x_like.nn.positions import Position
from t5x_like.slots import NonNegativeFloat

_BLOCK = 512  # tokens


class Sinks(Dense):
  """Softmax over the keys and the head's sink, for every mask, bias, cap and grouping of heads.

  Args:
    stddev: standard deviation of the initial sinks.
  """

  piecewise_bias_above = MAX_DENSE_LOGITS
  max_dense_logits = MAX_DENSE_LOGITS  # per head; more are not materialised

  def __init__(self, rngs: nnx.Rngs, dims: Dims, *, stddev: NonNegativeFloat = 0.02):
    self.sinks = params.param(rngs, params.normal(stddev), (dims.heads,), ("heads",))

  def run_sharded(self, q, k, v, mask, softmax):
    if q.shape[1] * k.shape[1] <= self.max_dense_logits or softmax.position.query_dependent:
      return super().run_sharded(q, k, v, mask, softmax)
    # Each device selects the sinks of its own heads from the whole vector.
    position = _PositionWithSinks(softmax.position, self.sinks[...])
    softmax = dataclasses.replace(softmax, position=position)
    return _BlockwiseSinks().run_sharded(q, k, v, mask, softmax)

  def weights(self, logits_BNTS, allowed, dtype):
    sinks_BNT1 = jnp.broadcast_to(self.sinks[...][:, None, None], (*logits_BNTS.shape[:-1], 1))
    if allowed is not None:
      allowed = jnp.concatenate([allowed, jnp.ones((*allowed.shape[:-1], 1), bool)], axis=-1)
    logits_BNTX = jnp.concatenate([logits_BNTS, sinks_BNT1], axis=-1)
    return Dense.weights(logits_BNTX, allowed, dtype)[..., :-1]


class _PositionWithSinks(Position):
  """The layer's position scheme, and the sinks of all heads."""

  def __init__(self, scheme: Position, sinks_N: jax.Array):
    self.scheme = scheme
    self.sinks = sinks_N


class _BlockwiseSinks(PerDevice):
  """The core for long sequences, called with a `_PositionWithSinks` as the layer's positions."""

  def attend(self, q, k, v, mask, softmax):
    sinks_N = jnp.take(softmax.position.sinks, softmax.device_slice.heads)
    softmax = dataclasses.replace(softmax, position=softmax.position.scheme)
    grid, arguments = blockwise.plan_blocks(q, k, v, mask, softmax, _BLOCK, _BLOCK)
    out = blockwise.attend(grid, *arguments, sinks_N)
    return out.reshape(q.shape[0], -1, q.shape[2], v.shape[-1])[:, : q.shape[1]]


make = Sinks
