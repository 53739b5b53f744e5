"""ViT's positions: a learned vector for each patch, in raster order, added to the patch."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_like.nn.image_positions import AddedAt, Grid
from t5x_like.nn.positions.learned import LearnedPosition


class LearnedPatches(LearnedPosition):
  """A vector for each extra token and each patch (Dosovitskiy et al. 2021, equation 1).

  Args:
    at: where the vectors are added: to the inputs of the stack, or in every layer.
    antialias: whether a table resized to fewer patches is low-pass filtered, by a wider kernel
      (DINOv2 with registers).
  """

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

  def resize(self, table: jax.Array, source: "LearnedPatches") -> jax.Array:
    """Interpolate the vectors of another grid's patches in two dimensions (section 3.2).

    Args:
      table: the vectors of the other grid's extra tokens, which stay unchanged, and of its patches:
        [..., tokens, D].
      source: the scheme that has the table.
    Returns:
      The table for this grid.
    """
    if source.grid.extra != self.grid.extra:
      raise ValueError(f"{source.grid.extra} extra tokens, expected {self.grid.extra}")
    *layers, _, D = table.shape
    extra = table[..., : self.grid.extra, :]
    patches = table[..., self.grid.extra :, :]
    patches = patches.reshape(*layers, source.grid.rows, source.grid.columns, D)
    row_weights = cubic_weights(source.grid.rows, self.grid.rows, self.antialias)
    column_weights = cubic_weights(source.grid.columns, self.grid.columns, self.antialias)
    resized = jnp.einsum("yr,xc,...rcd->...yxd", row_weights, column_weights, patches)
    resized = resized.reshape(*layers, -1, D)
    return jnp.concatenate([extra, resized], axis=-2)


def cubic_weights(old: int, new: int, antialias: bool = False) -> np.ndarray:
  """Return the weights of cubic interpolation from `old` to `new` cells: float32 [new, old].

  Both rows of cells have the same total length. The kernel is the same as in torch's `bicubic`
  mode: it has a = -0.75 and repeats the cells at the border. With `antialias`, it has a = -0.5,
  leaves out cells beyond the border, and becomes wider if there are fewer new cells than old.
  """
  a = -0.75
  width = 1.0
  border = 2
  if antialias:
    a = -0.5
    width = max(old / new, 1.0)
    border = 0
  cells = np.arange(-border, old + border)
  centers = (np.arange(new)[:, None] + 0.5) * old / new - 0.5
  distance = np.abs(centers - cells) / width
  near = (a + 2) * distance**3 - (a + 3) * distance**2 + 1
  far = a * (distance**3 - 5 * distance**2 + 8 * distance - 4)
  kernel = np.where(distance < 2, far, 0.0)
  kernel = np.where(distance <= 1, near, kernel)
  total = kernel.sum(axis=1) if antialias else 1.0
  weights = np.zeros((old, new))
  np.add.at(weights, cells.clip(0, old - 1), kernel.T / total)
  return weights.T.astype(np.float32)


make = LearnedPatches
