"""Attention with queries, keys and values pooled on their grid (MViT v2)."""

import dataclasses
import itertools
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.design import Design
from t5x_like.architectures.grid_stack import GridStackBuilder
from t5x_like.nn import params
from t5x_like.nn.attention import Attention
from t5x_like.nn.block import Block, Residual
from t5x_like.nn.convolution import max_pool
from t5x_like.nn.dims import subkey
from t5x_like.nn.image_positions import Grid
from t5x_like.nn.layer import Context
from t5x_like.nn.linear import Linear, apply_jointly
from t5x_like.nn.mask import Mask, positions
from t5x_like.nn.norm import LayerScale
from t5x_like.nn.remat import name_activation

KERNEL_SIZE = 3  # rows and columns of the pooling kernel


class GridPool(nnx.Module):
  """A convolution of each channel, the same for all heads, and a norm over their width.

  The convolution has PyTorch's initial values. Extra tokens before the grid's are not pooled, only
  normalised.

  Args:
    grid: grid of the tokens, in raster order.
    stride: stride of the convolution, whose kernel has 3 x 3 weights for each of `width` channels.
  """

  def __init__(self, grid: Grid, stride: int, width: int, rngs: nnx.Rngs, *, norm: nnx.Module):
    self.kernel = params.param(
      rngs,
      params.fan_in_normal(KERNEL_SIZE**2, 3**-0.5),
      (KERNEL_SIZE, KERNEL_SIZE, width),
      (None, None, None),
    )
    self.norm = norm
    self.grid = grid
    self.stride = stride

  def __call__(self, x_BTNH: jax.Array) -> jax.Array:
    """Pool to [B, T / stride², N, H].

    The sum of shifted grids needs no transposition and does not move heads.
    """
    B, _, *heads = x_BTNH.shape
    extra, cells = jnp.split(x_BTNH.astype(jnp.float32), [self.grid.extra], axis=1)
    x = cells.reshape(B, self.grid.rows, self.grid.columns, *heads)
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0), (0, 0)))
    coarse = self.grid.coarser(self.stride)
    stride = self.stride
    rows = stride * (coarse.rows - 1) + 1
    columns = stride * (coarse.columns - 1) + 1
    kernel = self.kernel[...]
    y = 0
    for i, j in itertools.product(range(KERNEL_SIZE), range(KERNEL_SIZE)):
      y = y + kernel[i, j] * x[:, i : i + rows : stride, j : j + columns : stride]
    y = jnp.concatenate([extra, y.reshape(B, coarse.patches, *heads)], axis=1)
    return self.norm(y).astype(x_BTNH.dtype)


class PoolingAttention(Attention):
  """Multi-head pooling attention with residual pooling.

  It follows Li et al. 2022 (https://arxiv.org/abs/2112.01526, section 4.1).

  Args:
    cells: the grid of the tokens.
    q_stride, kv_stride: pooling strides of queries, and of keys and values.
    design: provides the norm after each pooling.
  """

  log_name = "attention_core"

  def __init__(
    self, dims, rngs, *, cells: Grid, q_stride: int, kv_stride: int, design: Design, **options
  ):
    super().__init__(dims, rngs, **options)

    def pool(stride):
      return GridPool(
        cells, stride, dims.head_dim, rngs, norm=design.make_norm(dims.head_dim, rngs)
      )

    self.pool_query = pool(q_stride)
    self.pool_key = pool(kv_stride)
    self.pool_value = pool(kv_stride)

  def __call__(self, x_BTD: jax.Array, context: Context, cache, key: jax.Array | None):
    """Return ([B, T / q_stride², D], {}, None)."""
    q_BTX, k_BTX, v_BTX = apply_jointly((self.query, self.key, self.value), x_BTD)
    q_BTNH = self.pool_query(self._heads(q_BTX, "activation_heads"))
    k_BSKH = self.pool_key(self._heads(k_BTX, "activation_kv_heads"))
    v_BSKH = self.pool_value(self._heads(v_BTX, "activation_kv_heads"))
    q_BTNH = name_activation(self.q_norm(q_BTNH), "query")
    k_BSKH = name_activation(self.k_norm(k_BSKH), "key")
    v_BSKH = name_activation(v_BSKH, "value")
    mask = Mask(positions(q_BTNH.shape[1]), positions(k_BSKH.shape[1]))
    with jax.named_scope("attention"):
      o_BTNH = self.core(
        q_BTNH,
        k_BSKH,
        v_BSKH,
        mask,
        None,
        self.position,
        log_name=self.log_name,
        scale=self.scale,
        softcap=self.softcap,
        dropout=self.dropout,
        key=subkey(key, 0),
      )
    o_BTNH = name_activation(self.add_pooled_queries(o_BTNH, q_BTNH), "context")
    y_BTD = self.out(o_BTNH.reshape(*o_BTNH.shape[:2], -1))
    return name_activation(y_BTD, "attention_out"), {}, None

  def add_pooled_queries(self, o_BTNH: jax.Array, q_BTNH: jax.Array) -> jax.Array:
    """Add the pooled queries to the attended values."""
    return o_BTNH + q_BTNH


class PoolingResidual(Residual):
  """A residual layer that makes the grid coarser and the tokens wider.

  Its shortcut is the normalised input, through a linear layer and max-pooled.
  """

  def __init__(self, layer, *, shortcut: Linear, cells: Grid, stride: int, **options):
    super().__init__(layer, **options)
    self.shortcut = shortcut
    self.cells = cells
    self.stride = stride

  def __call__(self, x_BTD: jax.Array, context: Context, cache, key: jax.Array | None):
    x_BTD = self.in_norm(x_BTD)
    y_BTD, aux, _ = self.layer(x_BTD, context, None, subkey(key, 0))
    x_BTD = max_pool_tokens(self.shortcut(x_BTD), self.cells, self.stride)
    return x_BTD + self.apply_drop_path(self.res_norm(y_BTD), context, key), aux, None


def max_pool_tokens(x_BTD: jax.Array, grid: Grid, stride: int) -> jax.Array:
  """Take the maximum of 3 x 3 cells of the grid: [B, T / stride², D]; extra tokens stay."""
  B, _, D = x_BTD.shape
  extra, cells = jnp.split(x_BTD, [grid.extra], axis=1)
  cells_BYXD = cells.reshape(B, grid.rows, grid.columns, D)
  pooled = max_pool(cells_BYXD, KERNEL_SIZE, stride, ((1, 1), (1, 1)))
  return jnp.concatenate([extra, pooled.reshape(B, -1, D)], axis=1)


@dataclasses.dataclass(frozen=True)
class PoolingBuilder(GridStackBuilder):
  """A builder of blocks with pooling attention.

  `grid` and `key_grid` are the grids of queries and keys after pooling.

  Attributes:
    cells: the grid of the tokens.
    q_stride, kv_stride: see `PoolingAttention`.
    width: width of the tokens, if it differs from the result's.
  """

  cells: Grid = Grid(0, 0)
  ATTENTION: ClassVar[type[PoolingAttention]] = PoolingAttention

  q_stride: int = 1
  kv_stride: int = 1
  width: int | None = None

  def _attention(
    self, kind: type[Attention], rngs: nnx.Rngs, layer_index: int | None = None
  ) -> Attention:
    attention = partial(
      self.ATTENTION,
      width=self.width,
      cells=self.cells,
      q_stride=self.q_stride,
      kv_stride=self.kv_stride,
      design=self.design,
    )
    return super()._attention(attention, rngs, layer_index)

  def build_entry(self, rngs: nnx.Rngs) -> Block:
    """Build the first block of a stage, whose attention pools queries and widens tokens."""
    width = self.width
    D = self.dims.embed
    shortcut = Linear((width, D), ("embed", None), self.design.kernel_init(width), rngs, bias=True)
    initial = self.design.layer_scale
    attention = PoolingResidual(
      self._attention(PoolingAttention, rngs, 0),
      res_norm=None if initial is None else LayerScale(D, rngs, initial=initial),
      in_norm=self.design.make_norm(width, rngs),
      shortcut=shortcut,
      cells=self.cells,
      stride=self.q_stride,
      dropout=self.dropout,
      drop_path=self.drop_path,
    )
    return Block(self_attention=attention, mlp=self._residual(self._mlp(rngs, False), rngs))
