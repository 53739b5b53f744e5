"""The ResNet of Big Transfer, which the hybrids of ViT have.

Kernels are standardised and norms are over groups of channels, so that no statistics of a batch are
kept (Kolesnikov et al. 2020, https://arxiv.org/abs/1912.11370).
"""

from functools import partial

import jax
from flax import nnx

from t5x_like.architectures.backbones.resnet import ConvUnit, ResNet
from t5x_like.errors import UserError
from t5x_like.nn.convolution import GroupNorm, StandardizedConv, even_borders, max_pool
from t5x_like.slots import PositiveInt


class BitResNet(ResNet):
  """ResNet-50 by default, with the blocks of its last stage in the one before.

  Its map is at 1/16 of the image's height and width (Dosovitskiy et al. 2021, section 4.1).

  Args:
    stem, widths, depths: see `ResNet`.
    groups: groups of channels of a norm; it divides the stem and a quarter of every width.
  """

  def __init__(
    self,
    rngs: nnx.Rngs,
    channels: int,
    *,
    stem: PositiveInt = 64,
    widths: tuple[PositiveInt, ...] = (256, 512, 1024),
    depths: tuple[PositiveInt, ...] = (3, 4, 9),
    groups: PositiveInt = 32,
  ):
    inner_widths = [width // 4 for width in widths]
    if any(width % groups for width in (stem, *inner_widths)):
      raise UserError(
        f"config.model.backbone.groups: found {groups} with a stem of {stem} and widths {widths}, "
        "expected a divisor of the stem and of widths / 4"
      )
    unit = partial(ConvUnit, partial(GroupNorm, groups=groups), conv=StandardizedConv)
    self.build(unit, rngs, channels, stem, widths, depths, bottleneck=True)

  def pool(self, x_BYXC: jax.Array) -> jax.Array:
    return max_pool(x_BYXC, 3, 2, even_borders(x_BYXC, 3, 2))


make = BitResNet
