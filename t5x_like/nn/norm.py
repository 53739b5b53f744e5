"""Normalisation layers, with statistics in float32; the backward pass keeps only the input."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn import params


class RMSNorm(nnx.Module):
  """`x / rms(x) * scale` over the last axis: no centring, no bias (Zhang & Sennrich 2019).

  It is T5's "layer norm". `plus_one` stores the scale minus one (Gemma), so that weight decay pulls
  the scale towards one.
  """

  def __init__(
    self,
    dim: int,
    rngs: nnx.Rngs,
    *,
    epsilon: float = 1e-6,
    plus_one: bool = False,
    gain: float = 1.0,
  ):
    self.epsilon = epsilon
    self.base = 1.0 if plus_one else 0.0
    self.scale = params.param(rngs, params.constant(gain - self.base), (dim,), (None,))

  @partial(jax.checkpoint, prevent_cse=False)
  def __call__(self, x_BTD: jax.Array) -> jax.Array:
    x32 = x_BTD.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
    normed = x32 * jax.lax.rsqrt(mean_square + self.epsilon)
    y32 = normed * (self.base + self.scale[...])
    return y32.astype(x_BTD.dtype)


class LayerNorm(nnx.Module):
  """`(x - mean(x)) / std(x) * scale + bias` over the last axis (Ba et al. 2016).

  The bias is optional; the scale starts at `gain`.
  """

  def __init__(
    self, dim: int, rngs: nnx.Rngs, *, epsilon: float = 1e-5, bias: bool = True, gain: float = 1.0
  ):
    self.scale = params.param(rngs, params.constant(gain), (dim,), (None,))
    self.bias = params.param(rngs, params.zeros, (dim,), (None,)) if bias else None
    self.epsilon = epsilon

  @partial(jax.checkpoint, prevent_cse=False)
  def __call__(self, x_BTD: jax.Array) -> jax.Array:
    x32 = x_BTD.astype(jnp.float32)
    centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    normed = centred * jax.lax.rsqrt(variance + self.epsilon)
    y32 = normed * self.scale[...]
    if self.bias is not None:
      y32 = y32 + self.bias[...]
    return y32.astype(x_BTD.dtype)


class AllHeads(nnx.Module):
  """A norm over the channels of all heads together (OLMo 2: OLMo Team 2025, section 3.3)."""

  def __init__(self, norm: nnx.Module):
    self.norm = norm

  def __call__(self, x_BTNH: jax.Array) -> jax.Array:
    x_BTX = x_BTNH.reshape(*x_BTNH.shape[:-2], -1)
    return self.norm(x_BTX).reshape(x_BTNH.shape)


class LayerScale(nnx.Module):
  """`x * scale`, with a small initial scale per channel.

  It follows Touvron et al. 2021 (https://arxiv.org/abs/2103.17239).
  """

  def __init__(self, dim: int, rngs: nnx.Rngs, *, initial: float):
    self.scale = params.param(rngs, params.constant(initial), (dim,), (None,))

  def __call__(self, x_BTD: jax.Array) -> jax.Array:
    return x_BTD * self.scale[...].astype(x_BTD.dtype)


class Identity(nnx.Module):
  """A module that returns its input, instead of a norm or a projection."""

  def __call__(self, x_BTD: jax.Array) -> jax.Array:
    return x_BTD


NORMS = {
  "layernorm": LayerNorm,
  "layernorm_no_bias": partial(LayerNorm, bias=False),
  "rmsnorm": RMSNorm,
  "rmsnorm_plus_one": partial(RMSNorm, plus_one=True),
}
