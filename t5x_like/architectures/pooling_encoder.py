"""The image encoder with pooling attention: Multiscale Vision Transformers."""

import dataclasses
from typing import ClassVar

import jax
from flax import nnx

from t5x_like.architectures.image_encoder import check_images
from t5x_like.architectures.image_stages import Stage, StagedEncoder, StagedVariant
from t5x_like.architectures.pooling import PoolingBuilder
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.norm import Identity
from t5x_like.slots import PositiveInt


@dataclasses.dataclass(frozen=True)
class PoolingVariant(StagedVariant):
  """Attributes:
  patch_size: rows and columns of a patch, more than `patch`, so that patches overlap.
  kv_stride: pooling stride of keys and values in the first stage; it halves from stage to stage,
    down to 1.
  """

  patch_size: PositiveInt = 7
  kv_stride: PositiveInt = 4


class OverlappingPatches(nnx.Module):
  """Projected patches of images: a convolution with half a patch of zeros around an image; it
  starts as PyTorch's."""

  def __init__(self, variant: PoolingVariant, rngs: nnx.Rngs):
    size = variant.patch_size
    pixels = variant.patch_size**2 * variant.channels
    shape = (size, size, variant.channels, variant.embed)
    axes = (None, None, None, "embed")
    self.kernel = params.param(rngs, params.fan_in_normal(pixels, 3**-0.5), shape, axes)
    self.bias = params.param(rngs, params.zeros, shape[-1:], axes[-1:])
    self.variant = variant

  def __call__(self, image_BYXC: jax.Array) -> jax.Array:
    variant, (Y, X) = self.variant, image_BYXC.shape[1:3]
    check_images(image_BYXC, variant)
    before = variant.patch_size // 2
    cells = (variant.grid.rows, variant.grid.columns)
    last = [(number - 1) * variant.patch + variant.patch_size for number in cells]
    around = [(before, max(0, end - before - side)) for end, side in zip(last, (Y, X))]
    strides = (variant.patch, variant.patch)
    names = ("NHWC", "HWIO", "NHWC")
    kernel = self.kernel[...].astype(image_BYXC.dtype)
    x = jax.lax.conv_general_dilated(image_BYXC, kernel, strides, around, dimension_numbers=names)
    return x.reshape(len(x), variant.grid.patches, -1) + self.bias[...].astype(x.dtype)


class PoolingEncoder(StagedEncoder):
  """Stages of blocks with pooling attention; after the first stage, each stage's first block makes
  the grid coarser."""

  VARIANT = PoolingVariant
  PATCHES: ClassVar[type[OverlappingPatches]] = OverlappingPatches

  def __init__(self, rngs: nnx.Rngs, *, variant: str | PoolingVariant, **options):
    super().__init__(rngs, variant=variant, **options)

  def build_patches(self, rngs: nnx.Rngs) -> OverlappingPatches:
    design = self.variant.design
    if design.norm_position != "pre":
      found = f"found {design.norm_position!r}"
      raise UserError(
        f"config.model.design.norm_position: {found}, expected 'pre' where blocks "
        "make the grid coarser"
      )
    return self.PATCHES(self.variant, rngs)

  def build_stage(self, number: int, rngs: nnx.Rngs, options: dict) -> Stage:
    variant = self.variant
    dims = self.variant.stages[number]
    grid = self.variant.grids[number]
    places = self.places(number)
    kv_stride = max(variant.kv_stride >> number, 1)
    given = dict(causal=False, grid=grid, kv_stride=kv_stride, **options)
    entry = None
    if number:
      before = variant.grids[number - 1]
      width = variant.stages[number - 1].embed
      pooled = dict(cells=before, key_grid=before.coarser(kv_stride), q_stride=2, width=width)
      entry = PoolingBuilder(variant.design, dims, **pooled, **given).build_entry(rngs)
    rest = places[1:] if number else places
    stack = None
    if rest:
      layers = dataclasses.replace(dims, layers=len(rest))
      same = dict(cells=grid, key_grid=grid.coarser(kv_stride), depths=rest)
      stack = PoolingBuilder(variant.design, layers, **same, **given).stack(rngs)
      stack = stack.without(final_norm=Identity())  # the whole model has one
    return Stage(entry, stack, remat=options["remat"], places=(places[0], 0.0), length=grid.patches)
