"""ResNet (He et al. 2016, https://arxiv.org/abs/1512.03385), without its classifier.

The stride of a stage is in its 3 x 3 convolution, as in torchvision and timm.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
from flax import nnx

from t5x_like.nn.convolution import NORMS, Conv, max_pool
from t5x_like.slots import PositiveInt


class ConvUnit(nnx.Module):
  """A convolution and its norm."""

  def __init__(
    self,
    norm,
    size: int,
    inputs: int,
    outputs: int,
    rngs: nnx.Rngs,
    *,
    stride: int = 1,
    dilation: int = 1,
    conv=Conv,
  ):
    self.conv = conv(size, inputs, outputs, rngs, stride=stride, dilation=dilation)
    self.norm = norm(outputs, rngs)

  def __call__(self, x_BYXC: jax.Array) -> jax.Array:
    return self.norm(self.conv(x_BYXC))


class ResidualUnits(nnx.Module):
  """`relu(x + units(x))`; the shortcut is projected where its shape changes.

  Args:
    unit: makes a `ConvUnit` from all arguments but the norm.
    dilation: (of the first 3 x 3 convolution, of the second).
  """

  def __init__(
    self,
    unit: Callable[..., ConvUnit],
    inputs: int,
    outputs: int,
    rngs: nnx.Rngs,
    *,
    stride: int,
    bottleneck: bool,
    dilation: tuple[int, int] = (1, 1),
  ):
    first_dilation, second_dilation = dilation
    if bottleneck:
      inner = outputs // 4
      units = [
        unit(1, inputs, inner, rngs),
        unit(3, inner, inner, rngs, stride=stride, dilation=first_dilation),
        unit(1, inner, outputs, rngs),
      ]
    else:
      units = [
        unit(3, inputs, outputs, rngs, stride=stride, dilation=first_dilation),
        unit(3, outputs, outputs, rngs, dilation=second_dilation),
      ]
    self.units = nnx.List(units)
    shortcut = None
    if stride != 1 or inputs != outputs:
      shortcut = unit(1, inputs, outputs, rngs, stride=stride)
    self.shortcut = shortcut

  def __call__(self, x_BYXC: jax.Array) -> jax.Array:
    y_BYXC = x_BYXC
    for number, unit in enumerate(self.units):
      y_BYXC = unit(y_BYXC)
      if number < len(self.units) - 1:
        y_BYXC = jax.nn.relu(y_BYXC)
    if self.shortcut is not None:
      x_BYXC = self.shortcut(x_BYXC)
    return jax.nn.relu(y_BYXC + x_BYXC)


class ResNet(nnx.Module):
  """A network that returns the last stage's features, at 1/32 of the image's height and width.

  Args:
    stem: channels of the first convolution.
    widths, depths: channels and blocks of each stage. By default ResNet-50.
    block: blocks of 1 x 1, 3 x 3 and 1 x 1 convolutions, or of two 3 x 3 convolutions ("basic",
      ResNet-18 and -34).
    norm: frozen batch norm for a pretrained network, group norm to train from scratch.
    groups: number of groups of channels of a group norm (Wu & He 2018 take 32).
    last_stage: "dilated" keeps the last stage at 1/16 of the image: a dilation of 2 replaces its
      stride (DC5 of Carion et al. 2020, section 4).
  """

  def __init__(
    self,
    rngs: nnx.Rngs,
    channels: int,
    *,
    stem: PositiveInt = 64,
    widths: tuple[PositiveInt, ...] = (256, 512, 1024, 2048),
    depths: tuple[PositiveInt, ...] = (3, 4, 6, 3),
    block: Literal["bottleneck", "basic"] = "bottleneck",
    norm: Literal["frozen_batch", "group"] = "frozen_batch",
    groups: PositiveInt = 32,
    last_stage: Literal["strided", "dilated"] = "strided",
  ):
    self.local = norm == "frozen_batch"
    options = dict(bottleneck=block == "bottleneck", dilated=last_stage == "dilated")
    make_norm = NORMS[norm] if self.local else partial(NORMS[norm], groups=groups)
    self.build(partial(ConvUnit, make_norm), rngs, channels, stem, widths, depths, **options)

  def build(
    self,
    unit: Callable[..., ConvUnit],
    rngs: nnx.Rngs,
    channels: int,
    stem: int,
    widths: tuple[int, ...],
    depths: tuple[int, ...],
    *,
    dilated: bool = False,
    **options,
  ) -> None:
    """Build the stem and the stages.

    Args:
      unit: makes a `ConvUnit` from all arguments but the norm.
      dilated: whether a dilation replaces the stride of the last stage.
      options: further arguments of `ResidualUnits`.
    """
    self.stem = unit(7, channels, stem, rngs, stride=2)
    inputs = stem
    stages = []
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
      is_dilated = dilated and stage == len(widths) - 1
      dilation = 2 if is_dilated else 1
      stride = 1 if stage == 0 or is_dilated else 2
      make_units = partial(ResidualUnits, unit, rngs=rngs, **options)
      # The first convolution of a dilated stage is not dilated, as in torchvision and timm.
      blocks = [make_units(inputs, width, stride=stride, dilation=(1, dilation))]
      for _ in range(depth - 1):
        blocks.append(make_units(width, width, stride=1, dilation=(dilation, dilation)))
      stages.append(nnx.List(blocks))
      inputs = width
    self.stages = nnx.List(stages)
    self.width = inputs
    halvings = len(stages) if dilated else len(stages) + 1
    self.stride = 2**halvings

  def pool(self, x_BYXC: jax.Array) -> jax.Array:
    return max_pool(x_BYXC, 3, 2, ((1, 1), (1, 1)))

  def __call__(self, image_BYXC: jax.Array, key: jax.Array | None = None) -> jax.Array:
    x_BYXC = jax.nn.relu(self.stem(image_BYXC))
    x_BYXC = self.pool(x_BYXC)
    for stage in self.stages:
      for block in stage:
        x_BYXC = block(x_BYXC)
    return x_BYXC


make = ResNet
