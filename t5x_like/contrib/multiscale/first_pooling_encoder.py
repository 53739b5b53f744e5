"""The image encoder of MViT, version 1.

Unlike in version 2, pooled queries are not added to the attended values, and tokens become wider at
the end of a stage instead of its start.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.image_stages import Stage
from t5x_like.contrib.multiscale.pooling import PoolingAttention, PoolingBuilder, max_pool_tokens
from t5x_like.contrib.multiscale.pooling_encoder import (
  OverlappingPatches,
  PoolingEncoder,
  PoolingVariant,
)
from t5x_like.nn import params
from t5x_like.nn.block import Block, Residual
from t5x_like.nn.dims import subkey
from t5x_like.nn.image_positions import Grid
from t5x_like.nn.layer import Context
from t5x_like.nn.linear import Linear
from t5x_like.nn.norm import Identity
from t5x_like.slots import NonNegativeInt


@dataclasses.dataclass(frozen=True)
class FirstPoolingVariant(PoolingVariant):
  """A `PoolingVariant` with a class token."""

  TOKENS: ClassVar[int] = 1

  class_tokens: NonNegativeInt = 1


class FirstPoolingAttention(PoolingAttention):
  """Multi-head pooling attention (Fan et al. 2021, https://arxiv.org/abs/2104.11227, section 3.1).

  Queries are pooled only where the grid becomes coarser, and are not added to the attended values.
  """

  def __init__(self, dims, rngs: nnx.Rngs, *, q_stride: int, **options):
    super().__init__(dims, rngs, q_stride=q_stride, **options)
    self.pool_query = Identity() if q_stride == 1 else self.pool_query

  def add_pooled_queries(self, o_BTNH: jax.Array, q_BTNH: jax.Array) -> jax.Array:
    return o_BTNH


class PooledResidual(Residual):
  """A residual layer that makes the grid coarser: its shortcut is the max-pooled input."""

  def __init__(self, layer, *, cells: Grid, stride: int, **options):
    super().__init__(layer, **options)
    self.cells = cells
    self.stride = stride

  def __call__(self, x_BTD: jax.Array, context: Context, cache, key: jax.Array | None):
    y_BTD, aux, _ = self.layer(self.in_norm(x_BTD), context, None, subkey(key, 0))
    x_BTD = max_pool_tokens(x_BTD, self.cells, self.stride)
    return x_BTD + self.apply_drop_path(self.res_norm(y_BTD), context, key), aux, None


class WideningResidual(Residual):
  """A residual layer that makes tokens wider, with a linear shortcut from the normalised input."""

  def __init__(self, layer, *, shortcut: Linear, **options):
    super().__init__(layer, **options)
    self.shortcut = shortcut

  def __call__(self, x_BTD: jax.Array, context: Context, cache, key: jax.Array | None):
    x_BTD = self.in_norm(x_BTD)
    y_BTD, aux, _ = self.layer(x_BTD, context, None, subkey(key, 0))
    return self.shortcut(x_BTD) + self.apply_drop_path(y_BTD, context, key), aux, None


class FirstPoolingBuilder(PoolingBuilder):
  """A builder of blocks with `FirstPoolingAttention`."""

  ATTENTION = FirstPoolingAttention

  def build_end_block(self, rngs: nnx.Rngs, width: int) -> Block:
    """Build the first or the last block of a stage, which returns tokens of `width`.

    With a `q_stride` above 1, the block also makes the grid coarser.
    """
    sublayers = self._layer(0, rngs)
    attention = sublayers["self_attention"]
    mlp = sublayers["mlp"]
    rates = dict(drop_path=self.drop_path, dropout=self.dropout)
    if self.q_stride > 1:
      attention = PooledResidual(
        attention.layer,
        in_norm=attention.in_norm,
        res_norm=attention.res_norm,
        cells=self.cells,
        stride=self.q_stride,
        **rates,
      )
    D = self.dims.embed
    if width != D:
      F = self.dims.mlp
      has_bias = "mlp" in self.design.biases
      init = self.design.kernel_init
      mlp.layer.wo = Linear((F, width), ("mlp", "embed"), init(F), rngs, bias=has_bias)
      shortcut = Linear((D, width), ("embed", None), init(D), rngs, bias=True)
      mlp = WideningResidual(mlp.layer, in_norm=mlp.in_norm, shortcut=shortcut, **rates)
    return Block(self_attention=attention, mlp=mlp)


class TokenAndPatches(OverlappingPatches):
  """Overlapping patches, preceded by the class token."""

  def __init__(self, variant: FirstPoolingVariant, rngs: nnx.Rngs):
    super().__init__(variant, rngs)
    shape = (variant.class_tokens, variant.embed)
    init = variant.design.table_init()
    has_tokens = variant.class_tokens > 0
    self.tokens = params.param(rngs, init, shape, (None, "embed")) if has_tokens else None

  def __call__(self, image_BYXC: jax.Array) -> jax.Array:
    x_BTD = super().__call__(image_BYXC)
    if self.tokens is None:
      return x_BTD
    tokens_ED = self.tokens[...].astype(x_BTD.dtype)
    tokens_BED = jnp.broadcast_to(tokens_ED, (len(x_BTD), *tokens_ED.shape))
    return jnp.concatenate([tokens_BED, x_BTD], axis=1)


class FirstPoolingEncoder(PoolingEncoder):
  """Stages of blocks with pooling attention.

  The first block of a stage makes the grid coarser, the last one before the next stage makes tokens
  wider.
  """

  VARIANT = FirstPoolingVariant
  PATCHES = TokenAndPatches

  def build_stage(self, number: int, rngs: nnx.Rngs, options: dict) -> Stage:
    variant = self.variant
    dims = self.variant.stages[number]
    grid = self.variant.grids[number]
    depths = self.layer_depths(number)
    kv_stride = max(variant.kv_stride // 2**number, 1)
    is_last_stage = number + 1 == len(variant.depths)
    width = dims.embed if is_last_stage else variant.stages[number + 1].embed
    common = dict(causal=False, grid=grid, kv_stride=kv_stride, **options)
    same_grid = dict(cells=grid, key_grid=grid.coarser(kv_stride))
    entry = None
    stack = None
    last = None
    stack_depths = depths
    if number > 0:
      previous_grid = variant.grids[number - 1]
      builder = FirstPoolingBuilder(
        variant.design,
        dims,
        cells=previous_grid,
        key_grid=previous_grid.coarser(kv_stride),
        q_stride=2,
        **common,
      )
      entry = builder.build_end_block(rngs, width if len(depths) == 1 else dims.embed)
      stack_depths = depths[1:]
    if stack_depths and width != dims.embed:
      builder = FirstPoolingBuilder(variant.design, dims, **same_grid, **common)
      last = builder.build_end_block(rngs, width)
      stack_depths = stack_depths[:-1]
    if stack_depths:
      stack_dims = dataclasses.replace(dims, layers=len(stack_depths))
      builder = FirstPoolingBuilder(
        variant.design, stack_dims, depths=stack_depths, **same_grid, **common
      )
      stack = builder.stack(rngs).without(final_norm=Identity())  # the whole model has one
    return Stage(
      entry,
      stack,
      last,
      remat=options["remat"],
      end_depths=(depths[0], depths[-1]),
      length=grid.length,
    )
