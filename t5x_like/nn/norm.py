"""Normalisation layers. Statistics are always computed in float32."""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn import params


class RMSNorm(nnx.Module):
  """`x / rms(x) * scale` over the last axis: no centring, no bias (Zhang & Sennrich 2019; T5's "layer norm")."""

  def __init__(self, dim: int, rngs: nnx.Rngs, *, epsilon: float = 1e-6):
    self.scale = params.param(rngs, params.ones, (dim,), (None,))
    self.epsilon = epsilon

  def __call__(self, x_BTD: jax.Array) -> jax.Array:
    x32 = x_BTD.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
    return (x32 * jax.lax.rsqrt(mean_square + self.epsilon) * self.scale[...]).astype(x_BTD.dtype)


class Identity(nnx.Module):
  """The norm of a slot that has none."""

  def __call__(self, x_BTD: jax.Array) -> jax.Array:
    return x_BTD
