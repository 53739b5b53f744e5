"""The image encoder with pooling attention: Multiscale Vision Transformers."""

import dataclasses
from typing import ClassVar

import jax
from flax import nnx

from t5x_like.architectures.image_encoder import check_images
from t5x_like.architectures.image_stages import Stage, StagedEncoder, StagedVariant
from t5x_like.contrib.multiscale.pooling import PoolingBuilder
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.norm import Identity
from t5x_like.slots import PositiveInt


@dataclasses.dataclass(frozen=True)
class PoolingVariant(StagedVariant):
  """One published size of a Multiscale Vision Transformer.

  Attributes:
    patch_size: rows and columns of a patch, more than `patch`, so that patches overlap.
    kv_stride: pooling stride of keys and values in the first stage; it halves from stage to stage,
      down to 1.
  """

  patch_size: PositiveInt = 7
  kv_stride: PositiveInt = 4


class OverlappingPatches(nnx.Module):
  """Projected patches of images: a convolution with half a patch of zeros around an image.

  Its initial values are PyTorch's.
  """

  def __init__(self, variant: PoolingVariant, rngs: nnx.Rngs):
    size = variant.patch_size
    pixels = variant.patch_size**2 * variant.channels
    shape = (size, size, variant.channels, variant.embed)
    axes = (None, None, None, "embed")
    self.kernel = params.param(rngs, params.fan_in_normal(pixels, 3**-0.5), shape, axes)
    self.bias = params.param(rngs, params.zeros, shape[-1:], axes[-1:])
    self.variant = variant

  def __call__(self, image_BYXC: jax.Array) -> jax.Array:
    variant = self.variant
    check_images(image_BYXC, variant)
    _, Y, X, _ = image_BYXC.shape
    grid = variant.grid
    x_BYXC = jax.lax.conv_general_dilated(
      image_BYXC,
      self.kernel[...].astype(image_BYXC.dtype),
      (variant.patch, variant.patch),
      (self._borders(Y, grid.rows), self._borders(X, grid.columns)),
      dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    bias = self.bias[...].astype(x_BYXC.dtype)
    return x_BYXC.reshape(len(x_BYXC), grid.patches, -1) + bias

  def _borders(self, pixels: int, patches: int) -> tuple[int, int]:
    """Return the zeros before and after the pixels of a row or column."""
    variant = self.variant
    before = variant.patch_size // 2
    end = (patches - 1) * variant.patch + variant.patch_size
    return before, max(0, end - before - pixels)


class PoolingEncoder(StagedEncoder):
  """Stages of blocks with pooling attention.

  After the first stage, each stage's first block makes the grid coarser.
  """

  VARIANT = PoolingVariant
  PATCHES: ClassVar[type[OverlappingPatches]] = OverlappingPatches

  def __init__(self, rngs: nnx.Rngs, *, variant: str | PoolingVariant, **options):
    super().__init__(rngs, variant=variant, **options)

  def build_patches(self, rngs: nnx.Rngs) -> OverlappingPatches:
    design = self.variant.design
    if design.norm_position != "pre":
      raise UserError(
        f"config.model.design.norm_position: found {design.norm_position!r}, expected 'pre' where "
        "blocks make the grid coarser"
      )
    return self.PATCHES(self.variant, rngs)

  def build_stage(self, number: int, rngs: nnx.Rngs, options: dict) -> Stage:
    variant = self.variant
    dims = self.variant.stages[number]
    grid = self.variant.grids[number]
    depths = self.layer_depths(number)
    kv_stride = max(variant.kv_stride // 2**number, 1)
    common = dict(causal=False, grid=grid, kv_stride=kv_stride, **options)
    entry = None
    stack_depths = depths
    if number > 0:
      previous_grid = variant.grids[number - 1]
      builder = PoolingBuilder(
        variant.design,
        dims,
        cells=previous_grid,
        key_grid=previous_grid.coarser(kv_stride),
        q_stride=2,
        width=variant.stages[number - 1].embed,
        **common,
      )
      entry = builder.build_entry(rngs)
      stack_depths = depths[1:]
    stack = None
    if stack_depths:
      builder = PoolingBuilder(
        variant.design,
        dataclasses.replace(dims, layers=len(stack_depths)),
        cells=grid,
        key_grid=grid.coarser(kv_stride),
        depths=stack_depths,
        **common,
      )
      stack = builder.stack(rngs).without(final_norm=Identity())  # the whole model has one
    return Stage(
      entry, stack, remat=options["remat"], end_depths=(depths[0], 0.0), length=grid.patches
    )
