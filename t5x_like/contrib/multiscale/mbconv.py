"""MBConv: blocks of convolutions on grids, [B, Y, X, C]."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.convolution import convolve, max_pool
from t5x_like.nn.dims import Dropout
from t5x_like.nn.feed_forward import gelu
from t5x_like.nn.linear import Linear

MakeNorm = Callable[[int], nnx.Module]


class Convolution(nnx.Module):
  """A 3 x 3 convolution with a bias. A stride of 1 keeps the size; 2 halves it, rounded up."""

  def __init__(self, inputs: int, outputs: int, rngs: nnx.Rngs, *, stride: int = 1):
    init = params.fan_in_normal(3 * 3 * inputs)
    self.kernel = params.param(rngs, init, (3, 3, inputs, outputs), (None, None, None, None))
    self.bias = params.param(rngs, params.zeros, (outputs,), (None,))
    self.stride = stride

  def __call__(self, x_BYXC: jax.Array) -> jax.Array:
    y_BYXC = convolve(x_BYXC, self.kernel[...], self.stride)
    return y_BYXC + self.bias[...].astype(y_BYXC.dtype)


class Depthwise(nnx.Module):
  """A 3 x 3 convolution of each channel by itself.

  It is computed as nine shifted products, which the partitioner can split.
  """

  def __init__(self, channels: int, rngs: nnx.Rngs):
    init = params.fan_in_normal(3 * 3)
    self.kernel = params.param(rngs, init, (3, 3, channels), (None, None, None))

  def __call__(self, x_BYXC: jax.Array) -> jax.Array:
    _, Y, X, _ = x_BYXC.shape
    kernel = self.kernel[...].astype(x_BYXC.dtype)
    x_BYXC = jnp.pad(x_BYXC, ((0, 0), (1, 1), (1, 1), (0, 0)))
    total = 0
    for dy in range(3):
      for dx in range(3):
        shifted_BYXC = x_BYXC[:, dy : dy + Y, dx : dx + X]
        total = total + shifted_BYXC * kernel[dy, dx]
    return total


class SqueezeExcite(nnx.Module):
  """A gate for each channel: `x sigmoid(up(gelu(down(mean of x))))` (Hu et al. 2018)."""

  def __init__(self, channels: int, squeezed: int, rngs: nnx.Rngs):
    axes = (None, None)
    init = params.fan_in_normal
    self.down = Linear((channels, squeezed), axes, init(channels), rngs, bias=True)
    self.up = Linear((squeezed, channels), axes, init(squeezed), rngs, bias=True)

  def __call__(self, x_BYXC: jax.Array) -> jax.Array:
    mean_BC = x_BYXC.mean(axis=(1, 2))
    hidden_BC = gelu(self.down(mean_BC))
    gate_BC = jax.nn.sigmoid(self.up(hidden_BC))
    return x_BYXC * gate_BC[:, None, None]


class MbConv(nnx.Module):
  """`x + shrink(gate(act(norm(depthwise(act(norm(expand(norm(x)))))))))`.

  This is the block of Sandler et al. 2018 with pre-activation. The first block of a stage has a
  stride of 2 in `expand` and replaces x by `project(pool(x))` (Dai et al. 2021, equation 5).
  """

  def __init__(
    self,
    inputs: int,
    width: int,
    norm: MakeNorm,
    rngs,
    *,
    expansion: int,
    first: bool,
    drop_path: float,
  ):
    hidden = expansion * width
    axes = ("embed", None)
    init = params.fan_in_normal
    self.project = Linear((inputs, width), axes, init(inputs), rngs, bias=True) if first else None
    self.in_norm = norm(inputs)
    self.expand = Linear((inputs, hidden), axes, init(inputs), rngs)
    self.expand_norm = norm(hidden)
    self.depthwise = Depthwise(hidden, rngs)
    self.depthwise_norm = norm(hidden)
    self.gate = SqueezeExcite(hidden, width // 4, rngs)
    self.shrink = Linear((hidden, width), (None, "embed"), init(hidden), rngs, bias=True)
    self.drop_path = drop_path

  def __call__(self, x_BYXC: jax.Array, key: jax.Array | None) -> jax.Array:
    y_BYXC = self.in_norm(x_BYXC)
    if self.project is not None:
      y_BYXC = y_BYXC[:, ::2, ::2]
      x_BYXC = apply_per_cell(self.project, max_pool_2x2(x_BYXC))
    y_BYXC = apply_per_cell(self.expand, y_BYXC)
    y_BYXC = gelu(self.expand_norm(y_BYXC))
    y_BYXC = self.depthwise(y_BYXC)
    y_BYXC = gelu(self.depthwise_norm(y_BYXC))
    y_BYXC = self.gate(y_BYXC)
    y_BYXC = apply_per_cell(self.shrink, y_BYXC)
    drop_path = Dropout(self.drop_path, (-3, -2, -1))
    return x_BYXC + drop_path(y_BYXC, key)


def max_pool_2x2(x_BYXC: jax.Array) -> jax.Array:
  """Take the maximum of each 2 x 2 cells; an odd last row or column is pooled by itself."""
  _, Y, X, _ = x_BYXC.shape
  # not as a maximum over reshaped axes: its gradient compares the maximum with the inputs, which a
  # fused kernel may round differently
  return max_pool(x_BYXC, 2, 2, ((0, Y % 2), (0, X % 2)))


def apply_per_cell(layer, x_BYXC: jax.Array) -> jax.Array:
  """Apply a layer for sequences to each cell by itself."""
  B, Y, X, _ = x_BYXC.shape
  y_BTC = layer(x_BYXC.reshape(B, Y * X, -1))
  return y_BTC.reshape(B, Y, X, -1)
