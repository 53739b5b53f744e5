"""A learned vector for each row and one for each column, side by side, added to the patches."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.image_positions import AddedAt, Grid
from t5x_like.nn.image_positions.learned_1d import cubic_weights
from t5x_like.nn.positions import Position


class RowsAndColumns(Position):
  """Half of the channels encode the row, half the column (Dosovitskiy et al. 2021, appendix D.4).

  Extra tokens have vectors of their own. Vectors are added `at` the inputs or in layers.
  """

  def __init__(
    self, rngs: nnx.Rngs, width: int, init: Callable, grid: Grid, *, at: AddedAt = "inputs"
  ):
    if width % 2:
      raise UserError(
        f"config.model.design.position: learned_2d needs an even width, found {width}"
      )
    self.rows = params.param(rngs, init, (grid.rows, width // 2), (None, None))
    self.columns = params.param(rngs, init, (grid.columns, width // 2), (None, None))
    self.extra = params.param(rngs, init, (grid.extra, width), (None, None)) if grid.extra else None
    self.grid = grid
    self.owner = at

  def embed(self, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
    rows = self.rows[...][:, None]
    columns = self.columns[...][None]
    shape = (self.grid.rows, self.grid.columns, rows.shape[-1])
    table = jnp.concatenate([jnp.broadcast_to(part, shape) for part in (rows, columns)], -1)
    table = table.reshape(self.grid.patches, -1)
    if self.extra is not None:
      table = jnp.concatenate([self.extra[...], table])
    return x_BTD + jnp.take(table, pos_BT, axis=0, mode="clip").astype(x_BTD.dtype)

  def resize(self, table: jax.Array, source: "RowsAndColumns") -> jax.Array:
    """Interpolate the row (or column) vectors of another grid for this one.

    Rows and columns are told apart by their numbers, so the grids are square or agree in one of the
    two.
    """
    grid = self.grid
    length = table.shape[-2]
    is_row_table = length == source.grid.rows != source.grid.columns
    new_length = grid.rows if grid.rows == grid.columns or is_row_table else grid.columns
    return jnp.einsum("Yy,...yd->...Yd", cubic_weights(length, new_length), table)


make = RowsAndColumns
