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

  Extra tokens have separate vectors of full width. `at` is where the vectors are added, see
  `nn.image_positions`.
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
    shape = (self.grid.rows, self.grid.columns, self.rows.shape[-1])
    rows_YXd = jnp.broadcast_to(self.rows[...][:, None], shape)
    columns_YXd = jnp.broadcast_to(self.columns[...][None], shape)
    table_YXD = jnp.concatenate([rows_YXd, columns_YXd], axis=-1)
    table_PD = table_YXD.reshape(self.grid.patches, -1)
    if self.extra is not None:
      table_PD = jnp.concatenate([self.extra[...], table_PD])
    vectors_BTD = jnp.take(table_PD, pos_BT, axis=0, mode="clip")
    return x_BTD + vectors_BTD.astype(x_BTD.dtype)

  def resize(self, table: jax.Array, source: "RowsAndColumns") -> jax.Array:
    """Interpolate the row (or column) vectors of another grid for this one.

    Only the length of a table shows whether it is for rows or columns. A square grid can therefore
    be resized to a square one, or in the number of its columns alone.
    """
    length = table.shape[-2]
    is_source_square = source.grid.rows == source.grid.columns
    new_length = self.grid.columns
    if length == source.grid.rows and not is_source_square:
      new_length = self.grid.rows
    weights = cubic_weights(length, new_length)
    return jnp.einsum("Yy,...yd->...Yd", weights, table)


make = RowsAndColumns
