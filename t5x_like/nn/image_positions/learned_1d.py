"""A learned vector for each patch, in raster order, added to the patches (ViT)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_like.nn.image_positions import AddedAt, Grid
from t5x_like.nn.positions.learned import LearnedPosition


class LearnedPatches(LearnedPosition):
  """A vector for each extra token and each patch (Dosovitskiy et al. 2021, equation 1), added `at`
  the inputs or in layers. `antialias` widens the kernel of interpolation to fewer patches (DINOv2
  with registers)."""

  def __init__(
    self,
    rngs: nnx.Rngs,
    width: int,
    init: Callable,
    grid: Grid,
    *,
    at: AddedAt = "inputs",
    antialias: bool = False,
  ):
    super().__init__(rngs, width, init, length=grid.length)
    self.grid = grid
    self.owner = at
    self.antialias = antialias

  def resize(self, table: jax.Array, other: "LearnedPatches") -> jax.Array:
    """Interpolate another grid's table [..., rows, D] for this one, in two dimensions (section
    3.2); extra tokens keep their rows."""
    if other.grid.extra != self.grid.extra:
      raise ValueError(f"{other.grid.extra} extra tokens, expected {self.grid.extra}")
    (*layers, _, D), extra, patches = (
      table.shape,
      table[..., : self.grid.extra, :],
      table[..., self.grid.extra :, :],
    )
    patches = patches.reshape(*layers, other.grid.rows, other.grid.columns, D)
    rows = cubic_weights(other.grid.rows, self.grid.rows, self.antialias)
    columns = cubic_weights(other.grid.columns, self.grid.columns, self.antialias)
    patches = jnp.einsum("yr,xc,...rcd->...yxd", rows, columns, patches).reshape(*layers, -1, D)
    return jnp.concatenate([extra, patches], axis=-2)


def cubic_weights(old: int, new: int, antialias: bool = False) -> np.ndarray:
  """Return float32 [new, old], cubic interpolation between cells of equal size, as torch's
  "bicubic".

  Its kernel has a = -0.75 and repeats the cells at the border; with `antialias`, -0.5 and no cells
  beyond the border.
  """
  a, wide, beyond = (-0.5, max(old / new, 1.0), 0) if antialias else (-0.75, 1.0, 2)
  cells = np.arange(-beyond, old + beyond)
  x = np.abs((np.arange(new)[:, None] + 0.5) * old / new - 0.5 - cells) / wide
  near = (a + 2) * x**3 - (a + 3) * x**2 + 1
  far = a * (x**3 - 5 * x**2 + 8 * x - 4)
  weights = np.zeros((old, new))
  kernel = np.where(x <= 1, near, np.where(x < 2, far, 0.0))
  np.add.at(weights, cells.clip(0, old - 1), kernel.T / (kernel.sum(axis=1) if antialias else 1.0))
  return weights.T.astype(np.float32)


make = LearnedPatches
