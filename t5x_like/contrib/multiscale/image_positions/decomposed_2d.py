"""Learned vectors for row and column offsets; their products with queries are logits (MViT v2)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from t5x_like.nn.image_positions import Grid
from t5x_like.nn.linear import wide_einsum
from t5x_like.nn.positions import Position


class Decomposed2d(Position):
  """Decomposed relative positions, in every layer.

  The query at row i, column j and the key at row k, column l add `q · (rows[i - k] + columns[j -
  l])`, with the query before logits are scaled by 1/sqrt(H) (Li et al. 2022, arXiv:2112.01526,
  equations 3 and 4). If one grid is finer than the other, offsets are in cells of the finer one,
  rounded down, as in the authors' code. Extra tokens add nothing.
  """

  query_dependent = True

  def __init__(self, rngs: nnx.Rngs, dims: Dims, grid: Grid, key_grid: Grid | None):
    self.grid = grid
    self.key_grid = key_grid or grid
    init = params.normal(0.02)
    H = dims.head_dim
    max_rows = max(grid.rows, self.key_grid.rows)
    max_columns = max(grid.columns, self.key_grid.columns)
    self.rows = params.param(rngs, init, (2 * max_rows - 1, H), (None, None))
    self.columns = params.param(rngs, init, (2 * max_columns - 1, H), (None, None))

  def logits(self, q_BTNH: jax.Array, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    grid = self.grid
    cell_BT = jnp.maximum(q_pos_BT - grid.extra, 0)
    row_BT = cell_BT // grid.columns
    column_BT = cell_BT % grid.columns
    row_offset_BTK = offset_rows(grid.rows, self.key_grid.rows)[row_BT]
    column_offset_BTK = offset_rows(grid.columns, self.key_grid.columns)[column_BT]
    q_BTNH = q_BTNH * math.sqrt(q_BTNH.shape[-1])
    by_row = self._products(q_BTNH, self.rows, row_offset_BTK)
    by_column = self._products(q_BTNH, self.columns, column_offset_BTK)
    # one for each key cell
    logits = (by_row[..., :, None] + by_column[..., None, :]).reshape(*by_row.shape[:3], -1)
    if grid.extra:
      logits = jnp.where((q_pos_BT >= grid.extra)[..., None, None], logits, 0)
      logits = jnp.pad(logits, ((0, 0), (0, 0), (0, 0), (grid.extra, 0)))
    # a subset of the cells, or another order
    if k_pos_BS.shape[0] > 1 or k_pos_BS.shape[1] != logits.shape[-1]:
      logits = jnp.take_along_axis(logits, k_pos_BS[:, None, None, :], axis=-1)
    return jnp.swapaxes(logits, 1, 2)

  def _products(self, q_BTNH: jax.Array, table: nnx.Param, offset_BTK: jax.Array) -> jax.Array:
    """Multiply queries by the vectors of their offsets from the keys' rows (or columns).

    Returns:
      float32 [B, T, N, K]
    """
    vectors_BTKH = jnp.take(table[...].astype(q_BTNH.dtype), offset_BTK, axis=0)
    if len(vectors_BTKH) == 1:
      return wide_einsum("BTNH,TKH->BTNK", q_BTNH, vectors_BTKH[0])
    return wide_einsum("BTNH,BTKH->BTNK", q_BTNH, vectors_BTKH)

  def values(self, probs_BNTS: jax.Array, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    return jnp.zeros((), probs_BNTS.dtype)


def offset_rows(queries: int, keys: int) -> jax.Array:
  """Return the table row for each query's offset from each key: int32 [queries, keys]."""
  q_step = max(keys / queries, 1.0)
  k_step = max(queries / keys, 1.0)
  offset = np.arange(queries)[:, None] * q_step + (keys - 1 - np.arange(keys)[None, :]) * k_step
  return jnp.asarray(offset.astype(np.int32))


make = Decomposed2d
