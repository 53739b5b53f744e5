"""Norms of queries and keys that turn logits into scaled cosines.

They follow Liu et al. 2022 (https://arxiv.org/abs/2111.09883).
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn import params


class UnitNorm(nnx.Module):
  """`x / |x|` over the last axis."""

  def __call__(self, x_BTNH: jax.Array) -> jax.Array:
    x32 = x_BTNH.astype(jnp.float32)
    square = jnp.sum(jnp.square(x32), axis=-1, keepdims=True)
    return (x32 * jax.lax.rsqrt(jnp.maximum(square, 1e-24))).astype(x_BTNH.dtype)


class ScaledUnitNorm(UnitNorm):
  """`x / |x| * exp(s)`, which turns cosines of queries and keys into logits.

  Each head has its own s, which starts at log 10 and is capped at log 100 (equation 2).
  """

  def __init__(self, heads: int, rngs: nnx.Rngs):
    self.log_scale = params.param(rngs, params.constant(math.log(10)), (heads,), ("heads",))

  def __call__(self, x_BTNH: jax.Array) -> jax.Array:
    scale_N1 = jnp.exp(jnp.minimum(self.log_scale[...], math.log(100)))[:, None]
    return (super().__call__(x_BTNH.astype(jnp.float32)) * scale_N1).astype(x_BTNH.dtype)
