"""A small convolutional network, to train from scratch on small images and in tests."""

from functools import partial

import jax
from flax import nnx

from t5x_like.architectures.backbones.resnet import ConvUnit, ResidualUnits
from t5x_like.nn.convolution import GroupNorm
from t5x_like.slots import PositiveInt


class SmallCnn(nnx.Module):
  """A convolution and N - 1 basic ResNet blocks, each of stride 2.

  The features have 1 / 2^N of the image's height and width.

  Args:
    widths: channels of the N layers, multiples of 8.
  """

  def __init__(
    self, rngs: nnx.Rngs, channels: int, *, widths: tuple[PositiveInt, ...] = (16, 32, 64)
  ):
    self.stem = ConvUnit(GroupNorm, 3, channels, widths[0], rngs, stride=2)
    unit = partial(ConvUnit, GroupNorm)
    blocks = []
    for inputs, outputs in zip(widths, widths[1:]):
      blocks.append(ResidualUnits(unit, inputs, outputs, rngs, stride=2, bottleneck=False))
    self.blocks = nnx.List(blocks)
    self.width = widths[-1]
    self.stride = 2 ** len(widths)

  def __call__(self, image_BYXC: jax.Array, key: jax.Array | None = None) -> jax.Array:
    x_BYXC = jax.nn.relu(self.stem(image_BYXC))
    for block in self.blocks:
      x_BYXC = block(x_BYXC)
    return x_BYXC


make = SmallCnn
