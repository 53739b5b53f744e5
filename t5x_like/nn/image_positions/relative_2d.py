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
    row_BTS = jnp.asarray(pair_rows(self.grid))[q_pos_BT[:, :, None], k_pos_BS[:, None, :]]
    return jnp.transpose(jnp.take(self.table[...], row_BTS, axis=0), (0, 3, 1, 2))

  def resize(self, table: jax.Array, source: "Relative2d") -> jax.Array:
    """Interpolate another grid's table [..., rows, N] for this one, in two dimensions."""
    Y = 2 * self.grid.rows - 1
    X = 2 * self.grid.columns - 1
    y = 2 * source.grid.rows - 1
    x = 2 * source.grid.columns - 1
    patches = table[..., : y * x, :].reshape(*table.shape[:-2], y, x, table.shape[-1])
    extra = table[..., y * x :, :]
    patches = jnp.einsum("Yy,Xx,...yxN->...YXN", cubic_weights(y, Y), cubic_weights(x, X), patches)
    patches = patches.reshape(*table.shape[:-2], Y * X, -1)
    return jnp.concatenate([patches, extra], axis=-2)


def pair_rows(grid: Grid) -> np.ndarray:
  """Return the table row for each pair of query and key positions: int32 [length, length]."""
  row, column = np.divmod(np.arange(grid.patches), grid.columns)
  down = row[:, None] - row[None, :]
  right = column[:, None] - column[None, :]
  E = grid.extra
  last = (2 * grid.rows - 1) * (2 * grid.columns - 1)
  table_rows = np.zeros((grid.length, grid.length), np.int32)
  table_rows[E:, E:] = (down + grid.rows - 1) * (2 * grid.columns - 1) + right + grid.columns - 1
  table_rows[:E, E:] = last
  table_rows[E:, :E] = last + 1
  table_rows[:E, :E] = last + 2
  return table_rows


make = Relative2d
