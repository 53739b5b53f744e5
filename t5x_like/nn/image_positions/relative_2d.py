"""A learned scalar for each offset of rows and columns and each head (Swin, BEiT)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from t5x_like.nn.image_positions import Grid
from t5x_like.nn.image_positions.learned_1d import cubic_weights
from t5x_like.nn.positions import Position


class Relative2d(Position):
  """Relative position bias (Liu et al. 2021, section 3.2; Bao et al. 2022).

  With extra tokens, each head has three more scalars: from extra tokens to patches, from patches to
  them, and among them.

  Args:
    shared: whether the stack has one table, instead of one for each layer.
  """

  biased = True

  def __init__(self, rngs: nnx.Rngs, dims: Dims, grid: Grid, *, shared: bool = False):
    rows = (2 * grid.rows - 1) * (2 * grid.columns - 1)
    if grid.extra:
      rows += 3
    self.table = params.param(rngs, params.normal(0.02), (rows, dims.heads), (None, "heads"))
    self.owner = "stack" if shared else "layer"
    self.grid = grid

  def bias(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    row_BTS = take_pair_rows(self.grid, q_pos_BT, k_pos_BS)
    bias_BTSN = jnp.take(self.table[...], row_BTS, axis=0)
    return jnp.transpose(bias_BTSN, (0, 3, 1, 2))

  def resize(self, table: jax.Array, source: "Relative2d") -> jax.Array:
    """Interpolate another grid's table [..., rows, N] for this one, in two dimensions."""
    *layers, _, heads = table.shape
    new_rows = 2 * self.grid.rows - 1
    new_columns = 2 * self.grid.columns - 1
    old_rows = 2 * source.grid.rows - 1
    old_columns = 2 * source.grid.columns - 1
    offsets = old_rows * old_columns
    patches = table[..., :offsets, :].reshape(*layers, old_rows, old_columns, heads)
    extra = table[..., offsets:, :]
    row_weights = cubic_weights(old_rows, new_rows)
    column_weights = cubic_weights(old_columns, new_columns)
    resized = jnp.einsum("Yy,Xx,...yxN->...YXN", row_weights, column_weights, patches)
    resized = resized.reshape(*layers, new_rows * new_columns, -1)
    return jnp.concatenate([resized, extra], axis=-2)


def take_pair_rows(grid: Grid, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
  """Return the table row for each query and key, int32 [B, T, S]."""
  rows_PP = jnp.asarray(pair_rows(grid))
  return rows_PP[q_pos_BT[:, :, None], k_pos_BS[:, None, :]]


def pair_rows(grid: Grid) -> np.ndarray:
  """Return the table row for each pair of query and key positions: int32 [length, length]."""
  row, column = np.divmod(np.arange(grid.patches), grid.columns)
  down = row[:, None] - row[None, :] + grid.rows - 1
  right = column[:, None] - column[None, :] + grid.columns - 1
  row_offsets = 2 * grid.rows - 1
  column_offsets = 2 * grid.columns - 1
  extra = grid.extra
  offsets = row_offsets * column_offsets
  table_rows = np.zeros((grid.length, grid.length), np.int32)
  table_rows[extra:, extra:] = down * column_offsets + right
  table_rows[:extra, extra:] = offsets
  table_rows[extra:, :extra] = offsets + 1
  table_rows[:extra, :extra] = offsets + 2
  return table_rows


make = Relative2d
