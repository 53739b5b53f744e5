"""Sines and cosines of the column and of the row, added to the patches (MAE)."""

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.errors import UserError
from t5x_like.nn.image_positions import Grid
from t5x_like.nn.positions import Position


class Sinusoidal2d(Position):
  """Sines, then cosines, of the column in half of the channels, and of the row in the other half.

  Extra tokens get zeros. Nothing is learned, so any resolution works (He et al. 2022, as in the
  authors' code).
  """

  owner = "inputs"

  def __init__(self, width: int, grid: Grid):
    if width % 4:
      raise UserError(
        f"config.model.design.position: sinusoidal_2d needs a width divisible by 4, found {width}"
      )
    self.width = width
    self.grid = grid

  def embed(self, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
    table_PD = jnp.asarray(sine_table(self.width, self.grid), jnp.float32)
    vectors_BTD = jnp.take(table_PD, pos_BT, axis=0, mode="clip")
    return x_BTD + vectors_BTD.astype(x_BTD.dtype)


def sine_table(width: int, grid: Grid) -> np.ndarray:
  """Return the table of encodings, float32 [length, width]."""
  frequency = 1.0 / 10_000 ** (np.arange(width // 4) / (width / 4))
  row, column = np.divmod(np.arange(grid.patches), grid.columns)
  column_angle = np.outer(column, frequency)
  row_angle = np.outer(row, frequency)
  waves = [np.sin(column_angle), np.cos(column_angle), np.sin(row_angle), np.cos(row_angle)]
  patches = np.concatenate(waves, axis=1)
  extra = np.zeros((grid.extra, width))
  return np.concatenate([extra, patches]).astype(np.float32)


make = Sinusoidal2d
