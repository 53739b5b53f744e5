"""Relative positions in raster order: query-dependent logits for each distance."""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn.dims import Dims
from t5x_like.nn.image_positions import Grid
from t5x_like.nn.image_positions.learned_1d import cubic_weights
from t5x_like.nn.positions.shaw import ShawPosition


class RelativeOrder(ShawPosition):
  """A learned vector for each distance between two tokens, added to keys.

  Every layer has its own; heads share them (Dosovitskiy et al. 2021, appendix D.4; Shaw et al.
  2018, equation 4).
  """

  def __init__(self, rngs: nnx.Rngs, dims: Dims, grid: Grid):
    super().__init__(rngs, dims, clip=max(grid.length - 1, 1), values=False)

  def resize(self, table: jax.Array, source: "RelativeOrder") -> jax.Array:
    """Interpolate another grid's table [..., distances, H] for this one."""
    return jnp.einsum(
      "Xx,...xH->...XH", cubic_weights(2 * source.clip + 1, 2 * self.clip + 1), table
    )


make = RelativeOrder
