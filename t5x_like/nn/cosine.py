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
    unit32 = x32 * jax.lax.rsqrt(jnp.maximum(square, 1e-24))
    return unit32.astype(x_BTNH.dtype)


class ScaledUnitNorm(UnitNorm):
  """`x / |x| * exp(s)`, which turns cosines of queries and keys into logits.

  Each head has its own s, which starts at log 10 and is capped at log 100 (equation 2).
  """

  def __init__(self, heads: int, rngs: nnx.Rngs):
    self.log_scale = params.param(rngs, params.constant(math.log(10)), (heads,), ("heads",))

  def __call__(self, x_BTNH: jax.Array) -> jax.Array:
    log_scale_N = jnp.minimum(self.log_scale[...], math.log(100))
    scale_N1 = jnp.exp(log_scale_N)[:, None]
    unit32 = super().__call__(x_BTNH.astype(jnp.float32))
    return (unit32 * scale_N1).astype(x_BTNH.dtype)
