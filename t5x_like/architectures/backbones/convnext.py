"""ConvNeXt (Liu et al. 2022, https://arxiv.org/abs/2201.03545), without its classifier."""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.image_encoder import drop_path_shares
from t5x_like.nn import params
from t5x_like.nn.dims import Dropout, subkey
from t5x_like.nn.feed_forward import ACTIVATIONS
from t5x_like.nn.linear import Linear
from t5x_like.nn.norm import Identity, LayerNorm, LayerScale
from t5x_like.slots import NonNegativeFloat, PositiveInt, Rate

_SIZE = 7  # of a depthwise kernel
_STDDEV = 0.02  # of initial kernels
_EPSILON = 1e-6  # of norms


def _linear(inputs: int, outputs: int, rngs: nnx.Rngs) -> Linear:
  return Linear((inputs, outputs), (None, "embed"), params.normal(_STDDEV), rngs, bias=True)


class PatchConv(Linear):
  """A projection of squares of `side` x `side` cells: [B, Y / side, X / side, outputs].

  Cells that fill no square are dropped.
  """

  def __init__(self, side: int, inputs: int, outputs: int, rngs: nnx.Rngs):
    shape = (side * side * inputs, outputs)
    super().__init__(shape, (None, "embed"), params.normal(_STDDEV), rngs, bias=True)
    self.side = side

  def __call__(self, x_BYXC: jax.Array) -> jax.Array:
    B, Y, X, C = x_BYXC.shape
    P = self.side
    rows = Y // P
    columns = X // P
    cropped_BYXC = x_BYXC[:, : rows * P, : columns * P]
    by_row = cropped_BYXC.reshape(B, rows, P, columns, P, C)
    by_square = jnp.transpose(by_row, (0, 1, 3, 2, 4, 5))
    squares_BTX = by_square.reshape(B, rows * columns, P * P * C)
    y_BTC = super().__call__(squares_BTX)
    return y_BTC.reshape(B, rows, columns, -1)


class Depthwise(nnx.Module):
  """A 7 x 7 convolution of each channel by itself, with a bias; zeros surround the map."""

  def __init__(self, channels: int, rngs: nnx.Rngs):
    shape = (_SIZE, _SIZE, 1, channels)
    self.kernel = params.param(rngs, params.normal(_STDDEV), shape, (None, None, None, None))
    self.bias = params.param(rngs, params.zeros, (channels,), (None,))

  def __call__(self, x_BYXC: jax.Array) -> jax.Array:
    kernel = self.kernel[...].astype(x_BYXC.dtype)
    y_BYXC = jax.lax.conv_general_dilated(
      x_BYXC,
      kernel,
      (1, 1),
      "SAME",
      dimension_numbers=("NHWC", "HWIO", "NHWC"),
      feature_group_count=kernel.shape[-1],
    )
    return y_BYXC + self.bias[...].astype(y_BYXC.dtype)


class ConvBlock(nnx.Module):
  """`x + scale * wo(gelu(wi(norm(depthwise(x)))))`, four times as wide inside (section 2.4)."""

  def __init__(
    self, channels: int, rngs: nnx.Rngs, *, activation: str, layer_scale: float, drop_path: float
  ):
    self.depthwise = Depthwise(channels, rngs)
    self.norm = LayerNorm(channels, rngs, epsilon=_EPSILON)
    self.wi = _linear(channels, 4 * channels, rngs)
    self.wo = _linear(4 * channels, channels, rngs)
    self.scale = LayerScale(channels, rngs, initial=layer_scale) if layer_scale else Identity()
    self.activation, _ = ACTIVATIONS[activation]
    self.drop_path = drop_path

  def __call__(self, x_BYXC: jax.Array, key: jax.Array | None) -> jax.Array:
    B, Y, X, C = x_BYXC.shape
    y_BYXC = self.norm(self.depthwise(x_BYXC))
    y_BTC = y_BYXC.reshape(B, Y * X, C)
    hidden_BTF = self.activation(self.wi(y_BTC))
    y_BTC = self.scale(self.wo(hidden_BTF))
    drop_path = Dropout(self.drop_path, (-3, -2, -1))
    return x_BYXC + drop_path(y_BTC.reshape(x_BYXC.shape), key)


class ConvNeXt(nnx.Module):
  """A network that returns the last stage's features, at 1/32 of the image's height and width.

  Args:
    patch: side of the first squares in pixels.
    widths, depths: channels and blocks of each stage. By default ConvNeXt-T.
    layer_scale: initial factor of each channel of a block's output; 0 for no factor.
    drop_path: rate at which training skips the last block for an image; it grows from 0 in the
      first.
  """

  def __init__(
    self,
    rngs: nnx.Rngs,
    channels: int,
    *,
    patch: PositiveInt = 4,
    widths: tuple[PositiveInt, ...] = (96, 192, 384, 768),
    depths: tuple[PositiveInt, ...] = (3, 3, 9, 3),
    activation: str = "gelu",
    layer_scale: NonNegativeFloat = 1e-6,
    drop_path: Rate = 0.0,
  ):
    self.patches = PatchConv(patch, channels, widths[0], rngs)
    self.norm = LayerNorm(widths[0], rngs, epsilon=_EPSILON)
    pairs = list(zip(widths, widths[1:]))
    merge_norms = []
    for inputs, _ in pairs:
      merge_norms.append(LayerNorm(inputs, rngs, epsilon=_EPSILON))
    self.merge_norms = nnx.List(merge_norms)
    self.merges = nnx.List([PatchConv(2, inputs, outputs, rngs) for inputs, outputs in pairs])
    stages = []
    for stage, (width, _) in enumerate(zip(widths, depths, strict=True)):
      blocks = []
      for share in drop_path_shares("linear", depths, stage):
        block = ConvBlock(
          width,
          rngs,
          activation=activation,
          layer_scale=layer_scale,
          drop_path=drop_path * share,
        )
        blocks.append(block)
      stages.append(nnx.List(blocks))
    self.stages = nnx.List(stages)
    self.width = widths[-1]
    self.stride = patch * 2 ** len(pairs)
    self.local = True

  def __call__(self, image_BYXC: jax.Array, key: jax.Array | None = None) -> jax.Array:
    x_BYXC = self.norm(self.patches(image_BYXC))
    number = 0
    for stage, blocks in enumerate(self.stages):
      if stage > 0:
        x_BYXC = self.merge_norms[stage - 1](x_BYXC)
        x_BYXC = self.merges[stage - 1](x_BYXC)
      for block in blocks:
        x_BYXC = block(x_BYXC, subkey(key, number))
        number += 1
    return x_BYXC


make = ConvNeXt
