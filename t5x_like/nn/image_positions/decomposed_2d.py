"""Learned vectors for row and column offsets; their products with queries are added to the logits
(MViT v2)."""

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
  """Decomposed relative positions, in every layer (Li et al. 2022, arXiv:2112.01526, equations 3
  and 4).

  The query at row i, column j and the key at row k, column l add `q · (rows[i - k] + columns[j -
  l])`, with the query before logits are scaled by 1/sqrt(H). If one grid is finer than the other,
  offsets are in cells of the finer one, rounded down, as in the authors' code. Extra tokens add
  nothing.
  """

  query_dependent = True

  def __init__(self, rngs: nnx.Rngs, dims: Dims, grid: Grid, key_grid: Grid | None):
    self.grid = grid
    self.key_grid = key_grid or grid
    init = params.normal(0.02)
    H = dims.head_dim
    self.rows = params.param(
      rngs, init, (2 * max(grid.rows, self.key_grid.rows) - 1, H), (None, None)
    )
    self.columns = params.param(
      rngs, init, (2 * max(grid.columns, self.key_grid.columns) - 1, H), (None, None)
    )

  def logits(self, q_BTNH: jax.Array, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    place_BT = jnp.maximum(q_pos_BT - self.grid.extra, 0)
    row_BT = place_BT // self.grid.columns
    column_BT = place_BT % self.grid.columns
    q_BTNH = q_BTNH * math.sqrt(q_BTNH.shape[-1])
    of_row = self._products(
      q_BTNH, self.rows, offset_rows(self.grid.rows, self.key_grid.rows)[row_BT]
    )
    of_column = self._products(
      q_BTNH, self.columns, offset_rows(self.grid.columns, self.key_grid.columns)[column_BT]
    )
    # one for each key cell
    rel = (of_row[..., :, None] + of_column[..., None, :]).reshape(*of_row.shape[:3], -1)
    if self.grid.extra:
      rel = jnp.where((q_pos_BT >= self.grid.extra)[..., None, None], rel, 0)
      rel = jnp.pad(rel, ((0, 0), (0, 0), (0, 0), (self.grid.extra, 0)))
    # a subset of the cells, or another order
    if k_pos_BS.shape[0] > 1 or k_pos_BS.shape[1] != rel.shape[-1]:
      rel = jnp.take_along_axis(rel, k_pos_BS[:, None, None, :], axis=-1)
    return jnp.swapaxes(rel, 1, 2)

  def _products(self, q_BTNH: jax.Array, table: nnx.Param, offset_BTK: jax.Array) -> jax.Array:
    """Multiply queries by the vectors of their offsets from the keys' rows (or columns): float32
    [B, T, N, K]."""
    vectors_BTKH = jnp.take(table[...].astype(q_BTNH.dtype), offset_BTK, axis=0)
    if len(vectors_BTKH) == 1:
      return wide_einsum("BTNH,TKH->BTNK", q_BTNH, vectors_BTKH[0])
    return wide_einsum("BTNH,BTKH->BTNK", q_BTNH, vectors_BTKH)

  def values(self, probs_BNTS: jax.Array, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    return jnp.zeros((), probs_BNTS.dtype)


def offset_rows(queries: int, keys: int) -> jax.Array:
  """Return the table row for the offset of each query's row from each key's: int32 [queries,
  keys]."""
  q_step = max(keys / queries, 1.0)
  k_step = max(queries / keys, 1.0)
  offset = np.arange(queries)[:, None] * q_step + (keys - 1 - np.arange(keys)[None, :]) * k_step
  return jnp.asarray(offset.astype(np.int32))


make = Decomposed2d
