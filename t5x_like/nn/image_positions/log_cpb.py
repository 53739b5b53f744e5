"""A small network that maps offsets, on a logarithmic scale, to biases of the logits (Swin V2)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from t5x_like.nn.image_positions import Grid
from t5x_like.nn.image_positions.relative_2d import take_pair_rows
from t5x_like.nn.linear import Linear
from t5x_like.nn.positions import Position
from t5x_like.slots import PositiveInt


class LogCpb(Position):
  """Log-spaced continuous position bias, in every layer.

  `16 * sigmoid(out(relu(hidden(offset))))`: bounded, as in the authors' code (Liu et al. 2022,
  arXiv:2111.09883, section 3.3). The parameters fit any grid. With extra tokens, each head has
  three more scalars: from extra tokens to patches, from patches to them, and among them.

  Args:
    hidden: the network's width.
    pretrained: rows of the grid that the parameters were first trained on, which scales offsets; 0
      for this grid.
  """

  biased = True

  def __init__(
    self, rngs: nnx.Rngs, dims: Dims, grid: Grid, *, hidden: PositiveInt = 512, pretrained: int = 0
  ):
    init = params.normal(0.02)
    self.hidden = Linear((2, hidden), (None, None), init, rngs, bias=True)
    self.out = Linear((hidden, dims.heads), (None, "heads"), init, rngs)
    self.extra = params.param(rngs, init, (3, dims.heads), (None, "heads")) if grid.extra else None
    self.grid = grid
    self.pretrained = pretrained

  def bias(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    offset_X2 = jnp.asarray(log_offsets(self.grid, self.pretrained))
    hidden_XF = jax.nn.relu(self.hidden(offset_X2))
    table_XN = self.out(hidden_XF)
    if self.extra is not None:
      table_XN = jnp.concatenate([table_XN, self.extra[...]])
    row_BTS = take_pair_rows(self.grid, q_pos_BT, k_pos_BS)
    bounded_XN = 16 * jax.nn.sigmoid(table_XN)
    bias_BTSN = jnp.take(bounded_XN, row_BTS, axis=0)
    return jnp.transpose(bias_BTSN, (0, 3, 1, 2))


def log_offsets(grid: Grid, pretrained: int = 0) -> np.ndarray:
  """Return `sign(d) log2(1 + |d|) / 3` of row and column offsets d, scaled to -8…8 (equation 4).

  Returns:
    float32 [offsets, 2]
  """
  logarithms = []
  for cells in (grid.rows, grid.columns):
    largest = max((pretrained or cells) - 1, 1)
    offset = np.arange(1 - cells, cells) * 8 / largest
    logarithms.append(np.sign(offset) * np.log2(1 + np.abs(offset)) / math.log2(8))
  pairs = np.stack(np.meshgrid(*logarithms, indexing="ij"), axis=-1)
  return pairs.reshape(-1, 2).astype(np.float32)


make = LogCpb
