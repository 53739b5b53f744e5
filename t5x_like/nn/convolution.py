"""Convolutions of images and their norms; arrays are [B, Y, X, C]."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_like.nn import params

# rows above and below, columns to the left and right
Borders = tuple[tuple[int, int], tuple[int, int]]


def convolve(
  x_BYXC: jax.Array,
  kernel: jax.Array,
  stride: int,
  borders: Borders | None = None,
  dilation: int = 1,
) -> jax.Array:
  """Convolve with a kernel [K, K, in, out]: `y[p] = sum_q x[stride p + dilation q] kernel[q]`.

  Args:
    borders: zeros around the images; None for `dilation * (K // 2)` on each side, which keep the
      size of the map for a stride of 1.
  """
  if borders is None:
    border = dilation * (len(kernel) // 2)
    borders = ((border, border), (border, border))
  return jax.lax.conv_general_dilated(
    x_BYXC,
    kernel.astype(x_BYXC.dtype),
    (stride, stride),
    borders,
    rhs_dilation=(dilation, dilation),
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
  )


def even_borders(x_BYXC: jax.Array, size: int, stride: int) -> Borders:
  """Return the borders with which windows of size x size cover an image.

  An odd cell is below or to the right.
  """
  borders = []
  for n in x_BYXC.shape[1:3]:
    last_window_start = (-(-n // stride) - 1) * stride
    missing = max(last_window_start + size - n, 0)
    borders.append((missing // 2, missing - missing // 2))
  return tuple(borders)


class Conv(nnx.Module):
  """A convolution with a square kernel [K, K, in, out], as in torch's ResNets.

  There are K // 2 zeros on each side.
  """

  def __init__(
    self,
    size: int,
    inputs: int,
    outputs: int,
    rngs: nnx.Rngs,
    *,
    stride: int = 1,
    dilation: int = 1,
  ):
    init = params.normal(math.sqrt(2.0 / (size * size * outputs)))  # He et al. 2015, for ReLU
    shape = (size, size, inputs, outputs)
    self.kernel = params.param(rngs, init, shape, (None, None, None, "embed"))
    self.stride = stride
    self.dilation = dilation

  def __call__(self, x_BYXC: jax.Array) -> jax.Array:
    return convolve(x_BYXC, self.kernel[...], self.stride, dilation=self.dilation)


class StandardizedConv(Conv):
  """A convolution whose kernel is normalised for each output channel (Qiao et al. 2019).

  It has `even_borders`, as in the ResNets of Big Transfer (Kolesnikov et al. 2020, section 3.2).
  """

  def __call__(self, x_BYXC: jax.Array) -> jax.Array:
    kernel = self.kernel[...] - jnp.mean(self.kernel[...], axis=(0, 1, 2))
    variance_C = jnp.mean(jnp.square(kernel), axis=(0, 1, 2))
    kernel = kernel * jax.lax.rsqrt(variance_C + 1e-8)
    borders = even_borders(x_BYXC, len(kernel), self.stride)
    return convolve(x_BYXC, kernel, self.stride, borders)


class FrozenBatchNorm(nnx.Module):
  """Batch norm with fixed statistics and no trained parameter.

  It follows Carion et al. 2020, appendix A.4.
  """

  def __init__(self, channels: int, rngs: nnx.Rngs, *, epsilon: float = 1e-5):
    initializers = {
      "scale": params.ones,
      "bias": params.zeros,
      "mean": params.zeros,
      "variance": params.ones,
    }
    for name, init in initializers.items():
      array = params.param(rngs, init, (channels,), (None,))
      array.set_metadata(fixed=True)
      setattr(self, name, array)
    self.epsilon = epsilon

  def __call__(self, x_BYXC: jax.Array) -> jax.Array:
    bias_C = jax.lax.stop_gradient(self.bias[...])
    mean_C = jax.lax.stop_gradient(self.mean[...])
    variance_C = jax.lax.stop_gradient(self.variance[...])
    scale_C = jax.lax.stop_gradient(self.scale[...])
    factor_C = scale_C * jax.lax.rsqrt(variance_C + self.epsilon)
    scaled_BYXC = x_BYXC.astype(jnp.float32) * factor_C
    y_BYXC = scaled_BYXC + (bias_C - mean_C * factor_C)
    return y_BYXC.astype(x_BYXC.dtype)


class GroupNorm(nnx.Module):
  """Normalisation over the pixels and one group of channels of each image (Wu & He 2018)."""

  def __init__(self, channels: int, rngs: nnx.Rngs, *, groups: int = 8, epsilon: float = 1e-5):
    self.scale = params.param(rngs, params.ones, (channels,), (None,))
    self.bias = params.param(rngs, params.zeros, (channels,), (None,))
    self.groups = groups
    self.epsilon = epsilon

  @partial(jax.checkpoint, prevent_cse=False)  # keeps only the input, as the norms of `nn.norm`
  def __call__(self, x_BYXC: jax.Array) -> jax.Array:
    axes = (1, 2, 4)  # all but images and groups
    x32_BYXGc = x_BYXC.astype(jnp.float32).reshape(*x_BYXC.shape[:3], self.groups, -1)
    centred_BYXGc = x32_BYXGc - jnp.mean(x32_BYXGc, axis=axes, keepdims=True)
    variance = jnp.mean(jnp.square(centred_BYXGc), axis=axes, keepdims=True)
    normed_BYXGc = centred_BYXGc * jax.lax.rsqrt(variance + self.epsilon)
    y_BYXC = normed_BYXGc.reshape(x_BYXC.shape) * self.scale[...] + self.bias[...]
    return y_BYXC.astype(x_BYXC.dtype)


NORMS = {"frozen_batch": FrozenBatchNorm, "group": GroupNorm}


def max_pool(x_BYXC: jax.Array, size: int, stride: int, borders: Borders) -> jax.Array:
  """Take the maximum of windows of size x size cells; `borders` pad rows and columns."""
  # The initial value is a constant of the array's dtype, so that JAX recognises a maximum and can
  # differentiate it.
  lowest = np.array(-np.inf, x_BYXC.dtype)
  window = (1, size, size, 1)
  strides = (1, stride, stride, 1)
  padding = ((0, 0), *borders, (0, 0))
  return jax.lax.reduce_window(x_BYXC, lowest, jax.lax.max, window, strides, padding)
