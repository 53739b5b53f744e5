"""A learned vector for each patch, in raster order, added to the patches (ViT)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_like.nn.image_positions import At, Grid
from t5x_like.nn.positions.learned import LearnedPosition


class LearnedPatches(LearnedPosition):
  """A vector for each extra token and each patch (Dosovitskiy et al. 2021, equation 1), added `at` the inputs or in
  layers."""

  def __init__(self, rngs: nnx.Rngs, width: int, init: Callable, grid: Grid, *, at: At = "inputs"):
    super().__init__(rngs, width, init, length=grid.length)
    self.grid, self.place = grid, at

  def resized(self, table: jax.Array, other: "LearnedPatches") -> jax.Array:
    """Interpolate another grid's table [..., rows, D] for this one, in two dimensions (section 3.2); extra tokens keep
    their rows."""
    if other.grid.extra != self.grid.extra:
      raise ValueError(f"{other.grid.extra} extra tokens, expected {self.grid.extra}")
    (*layers, _, D), extra, patches = table.shape, table[..., : self.grid.extra, :], table[..., self.grid.extra :, :]
    patches = patches.reshape(*layers, other.grid.rows, other.grid.columns, D)
    rows, columns = cubic(other.grid.rows, self.grid.rows), cubic(other.grid.columns, self.grid.columns)
    patches = jnp.einsum("yr,xc,...rcd->...yxd", rows, columns, patches).reshape(*layers, -1, D)
    return jnp.concatenate([extra, patches], axis=-2)


def cubic(old: int, new: int) -> np.ndarray:
  """Return float32 [new, old], cubic interpolation with a = -0.75 between cells of equal size, as torch's "bicubic"."""
  a, weights = -0.75, np.zeros((new, old))
  centre = (np.arange(new) + 0.5) * old / new - 0.5
  first = np.floor(centre).astype(int)
  for step in range(-1, 3):
    x = np.abs(centre - first - step)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * (x**3 - 5 * x**2 + 8 * x - 4)
    np.add.at(weights, (np.arange(new), np.clip(first + step, 0, old - 1)), np.where(x <= 1, near, far))
  return weights.astype(np.float32)


make = LearnedPatches
