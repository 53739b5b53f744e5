"""A learned scalar for each offset of rows and columns and each head, added to the logits (Swin,
BEiT)."""

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
  """Relative position bias (Liu et al. 2021, section 3.2; Bao et al. 2022): one per layer or, if
  `shared`, per stack.

  With extra tokens, each head has three more scalars: from extra tokens to patches, from patches to
  them, and among them.
  """

  biased = True

  def __init__(self, rngs: nnx.Rngs, dims: Dims, grid: Grid, *, shared: bool = False):
    rows = (2 * grid.rows - 1) * (2 * grid.columns - 1) + 3 * bool(grid.extra)
    self.table = params.param(rngs, params.normal(0.02), (rows, dims.heads), (None, "heads"))
    self.owner = "stack" if shared else "layer"
    self.grid = grid

  def bias(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    offset_BTS = jnp.asarray(pair_rows(self.grid))[q_pos_BT[:, :, None], k_pos_BS[:, None, :]]
    return jnp.transpose(jnp.take(self.table[...], offset_BTS, axis=0), (0, 3, 1, 2))

  def resize(self, table: jax.Array, other: "Relative2d") -> jax.Array:
    """Interpolate another grid's table [..., rows, N] for this one, in two dimensions."""
    (Y, X), (y, x) = ((2 * grid.rows - 1, 2 * grid.columns - 1) for grid in (self.grid, other.grid))
    between = table[..., : y * x, :]
    extra = table[..., y * x :, :]
    between = between.reshape(*table.shape[:-2], y, x, table.shape[-1])
    between = jnp.einsum("Yy,Xx,...yxN->...YXN", cubic_weights(y, Y), cubic_weights(x, X), between)
    return jnp.concatenate([between.reshape(*table.shape[:-2], Y * X, -1), extra], axis=-2)


def pair_rows(grid: Grid) -> np.ndarray:
  """Return the table row for each pair of query and key positions: int32 [length, length]."""
  row, column = np.divmod(np.arange(grid.patches), grid.columns)
  down, right = (axis[:, None] - axis[None, :] for axis in (row, column))
  between = (down + grid.rows - 1) * (2 * grid.columns - 1) + right + grid.columns - 1
  found = np.zeros((grid.length, grid.length), np.int32)
  last = (2 * grid.rows - 1) * (2 * grid.columns - 1)
  E = grid.extra
  found[E:, E:], found[:E, E:], found[E:, :E], found[:E, :E] = between, last, last + 1, last + 2
  return found


make = Relative2d
