"""The image encoder of the first MViT: pooling without a shortcut of queries, and stages that end
by widening."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.image_stages import Stage
from t5x_like.architectures.pooling import PoolingAttention, PoolingBuilder, max_pool_tokens
from t5x_like.architectures.pooling_encoder import (
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
  """A residual layer that makes tokens wider: its shortcut is a linear layer of the normalised
  input."""

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
    """Build the first or the last block of a stage, which may pool queries and writes tokens of
    `width`."""
    parts = self._layer(0, rngs)
    attention = parts["self_attention"]
    mlp = parts["mlp"]
    common = dict(drop_path=self.drop_path, dropout=self.dropout)
    if self.q_stride > 1:
      own = dict(
        in_norm=attention.in_norm,
        res_norm=attention.res_norm,
        cells=self.cells,
        stride=self.q_stride,
      )
      attention = PooledResidual(attention.layer, **own, **common)
    if width != self.dims.embed:
      D = self.dims.embed
      F = self.dims.mlp
      init = self.design.kernel_init
      mlp.layer.wo = Linear(
        (F, width), ("mlp", "embed"), init(F), rngs, bias="mlp" in self.design.biases
      )
      shortcut = Linear((D, width), ("embed", None), init(D), rngs, bias=True)
      mlp = WideningResidual(mlp.layer, in_norm=mlp.in_norm, shortcut=shortcut, **common)
    return Block(self_attention=attention, mlp=mlp)


class TokenAndPatches(OverlappingPatches):
  """Overlapping patches behind the class token."""

  def __init__(self, variant: FirstPoolingVariant, rngs: nnx.Rngs):
    super().__init__(variant, rngs)
    shape = (variant.class_tokens, variant.embed)
    self.tokens = (
      params.param(rngs, variant.design.table_init(), shape, (None, "embed")) if shape[0] else None
    )

  def __call__(self, image_BYXC: jax.Array) -> jax.Array:
    x_BTD = super().__call__(image_BYXC)
    if self.tokens is None:
      return x_BTD
    tokens_BED = jnp.broadcast_to(
      self.tokens[...].astype(x_BTD.dtype), (len(x_BTD), *self.tokens.shape)
    )
    return jnp.concatenate([tokens_BED, x_BTD], axis=1)


class FirstPoolingEncoder(PoolingEncoder):
  """Stages of blocks with pooling attention; the first block of a stage makes the grid coarser, the
  last one before the next stage makes tokens wider."""

  VARIANT = FirstPoolingVariant
  PATCHES = TokenAndPatches

  def build_stage(self, number: int, rngs: nnx.Rngs, options: dict) -> Stage:
    variant = self.variant
    dims = self.variant.stages[number]
    grid = self.variant.grids[number]
    places = self.places(number)
    kv_stride = max(variant.kv_stride >> number, 1)
    width = variant.stages[number + 1].embed if number + 1 < len(variant.depths) else dims.embed
    given = dict(causal=False, grid=grid, kv_stride=kv_stride, **options)
    same = dict(cells=grid, key_grid=grid.coarser(kv_stride))
    entry = None
    stack = None
    last = None
    rest = places
    if number:
      before = variant.grids[number - 1]
      pooled = dict(cells=before, key_grid=before.coarser(kv_stride), q_stride=2)
      builder = FirstPoolingBuilder(variant.design, dims, **pooled, **given)
      entry = builder.build_end_block(rngs, width if len(places) == 1 else dims.embed)
      rest = places[1:]
    if rest and width != dims.embed:
      last = FirstPoolingBuilder(variant.design, dims, **same, **given).build_end_block(rngs, width)
      rest = rest[:-1]
    if rest:
      layers = dataclasses.replace(dims, layers=len(rest))
      stack = FirstPoolingBuilder(variant.design, layers, depths=rest, **same, **given).stack(rngs)
      stack = stack.without(final_norm=Identity())  # the whole model has one
    ends = (places[0], places[-1])
    return Stage(entry, stack, last, remat=options["remat"], places=ends, length=grid.length)
