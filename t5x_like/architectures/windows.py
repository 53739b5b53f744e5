"""Attention within windows of a grid, shifted by half a window in every second layer.

It follows Liu et al. 2021.
"""

import dataclasses
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_like.architectures.grid_stack import GridStackBuilder
from t5x_like.nn.attention import Attention, SelfAttention
from t5x_like.nn.cores import Core
from t5x_like.nn.image_positions import Grid
from t5x_like.nn.layer import Context, Layer
from t5x_like.nn.linear import Linear
from t5x_like.nn.mask import Mask, positions


class WindowAttention(SelfAttention):
  """Self-attention among the cells of one window.

  Zeros on the right and at the bottom complete the grid to a multiple of the window; as in the
  authors' code, they are attended like other cells. Shifted windows cut the grid rolled up and to
  the left; cells that meet only because the grid was rolled do not see each other
  (https://arxiv.org/abs/2103.14030, section 3.2, figure 4).

  Args:
    grid: grid of the tokens, in raster order.
    side: rows and columns of a window.
    shift: number of rows and columns by which windows are moved; 0 for none.
  """

  def __init__(self, *args, grid: Grid, side: int, shift: int, **options):
    super().__init__(*args, **options)
    self.grid = grid
    self.side = side
    self.shift = shift

  def __call__(self, x_BTD: jax.Array, context: Context, cache, key: jax.Array | None):
    x_BYXD = x_BTD.reshape(len(x_BTD), self.grid.rows, self.grid.columns, -1)
    below = -self.grid.rows % self.side
    right = -self.grid.columns % self.side
    x_BYXD = jnp.pad(x_BYXD, ((0, 0), (0, below), (0, right), (0, 0)))
    shape = x_BYXD.shape
    windows = split_windows(jnp.roll(x_BYXD, (-self.shift, -self.shift), (1, 2)), self.side)
    context = dataclasses.replace(context, mask=self.mask(*shape[1:3]))
    y, aux, _ = super().__call__(windows, context, None, key)
    y_BYXD = jnp.roll(join_windows(y, shape, self.side), (self.shift, self.shift), (1, 2))
    return y_BYXD[:, : self.grid.rows, : self.grid.columns].reshape(x_BTD.shape), aux, None

  def mask(self, rows: int, columns: int) -> Mask:
    """Return the mask of all windows in order.

    The parts of the grid that a shifted window joins are segments.
    """
    cells = self.side**2
    pos = jnp.tile(positions(cells), (1, rows * columns // cells))
    if not self.shift:
      return Mask(pos, pos)
    is_rolled_Y = np.arange(rows) >= rows - self.shift
    is_rolled_X = np.arange(columns) >= columns - self.shift
    parts_YX = 2 * is_rolled_Y.astype(np.int32)[:, None] + is_rolled_X
    segments = jnp.asarray(
      split_windows(parts_YX[None, :, :, None].astype(np.int32), self.side)[..., 0]
    )
    return Mask(pos, pos, segments, segments)

  def attend(
    self, core: Core, q_BTX, k_BSKH, v_BSKH, mask: Mask, bias, key: jax.Array | None
  ) -> jax.Array:
    windowed_core = partial(_attend_within_windows, self.side**2, core)
    return super().attend(windowed_core, q_BTX, k_BSKH, v_BSKH, mask, bias, key)


def _attend_within_windows(
  cells: int, core: Core, q_BTNH, k_BSKH, v_BSKH, mask: Mask, *biases, key, **options
) -> jax.Array:
  """Run a core within each window of `cells` tokens, mapped over windows.

  The batch stays an axis of its own, which a TPU lays beside the width: there, tokens need no
  padding, and windows are moved as whole.
  """
  pos = mask.q_pos[:, :cells]
  count = mask.q_pos.shape[1] // cells
  H = q_BTNH.shape[-1]

  def attend_window(q_BTX, k_BTX, v_BTX, segments, key):
    B, T, _ = q_BTX.shape
    q_BTNH = q_BTX.reshape(B, T, -1, H)
    k_BTKH = k_BTX.reshape(B, T, -1, H)
    v_BTKH = v_BTX.reshape(B, T, -1, H)
    window_mask = Mask(pos, pos, segments, segments)
    o_BTNH = core(q_BTNH, k_BTKH, v_BTKH, window_mask, *biases, key=key, **options)
    return o_BTNH.reshape(B, T, -1)

  def cut(x):
    """Cut into windows, with heads side by side, as projections write them.

    On TPU, narrow heads would pad whatever moves them.
    """
    return x.reshape(len(x), count, cells, -1)

  segments = None if mask.q_segments is None else cut(mask.q_segments)[..., 0]
  keys = None if key is None else jax.random.split(key, count)
  segments_axis = None if segments is None else 1
  keys_axis = None if keys is None else 0
  attend_windows = jax.vmap(attend_window, (1, 1, 1, segments_axis, keys_axis), 1)
  out = attend_windows(cut(q_BTNH), cut(k_BSKH), cut(v_BSKH), segments, keys)
  return out.reshape(q_BTNH.shape)


def split_windows(x_BYXD, window: int):
  """Put tokens in the order of windows: [B, Y, X, D] -> [B, Y * X, D].

  Windows and their cells are in raster order.
  """
  B, Y, X, D = x_BYXD.shape
  x = x_BYXD.reshape(B, Y // window, window, X // window, window, D)
  return x.transpose(0, 1, 3, 2, 4, 5).reshape(B, -1, D)


def join_windows(x: jax.Array, shape: tuple[int, int, int, int], window: int) -> jax.Array:
  """Undo `split_windows`, for a grid of this shape."""
  B, Y, X, D = shape
  x = x.reshape(B, Y // window, X // window, window, window, D)
  return x.transpose(0, 1, 3, 2, 4, 5).reshape(shape)


class PatchMerging(Layer):
  """A layer that merges each square of four cells into one cell of another width.

  It concatenates their vectors, column by column, and applies a linear layer, with a norm before or
  after it. An odd grid gets zeros on the right and at the bottom.
  """

  def __init__(
    self, grid: Grid, width: int, out: int, rngs: nnx.Rngs, *, init, norm, norm_first: bool
  ):
    self.linear = Linear((4 * width, out), ("embed", None), init, rngs)
    self.norm = norm
    self.norm_first = norm_first
    self.grid = grid

  def __call__(self, x_BTD: jax.Array, context, cache, key):
    B, _, D = x_BTD.shape
    Y = self.grid.rows
    X = self.grid.columns
    x_BYXD = jnp.pad(x_BTD.reshape(B, Y, X, D), ((0, 0), (0, Y % 2), (0, X % 2), (0, 0)))
    squares = x_BYXD.reshape(B, -(-Y // 2), 2, -(-X // 2), 2, D)
    x_BTX = squares.transpose(0, 1, 3, 4, 2, 5).reshape(B, -1, 4 * D)
    if self.norm_first:
      return self.linear(self.norm(x_BTX)), {}, None
    return self.norm(self.linear(x_BTX)), {}, None


@dataclasses.dataclass(frozen=True)
class WindowStackBuilder(GridStackBuilder):
  """A builder of stacks whose layers attend within windows, alternately regular and shifted.

  `grid` is the grid of a window.

  Attributes:
    cells: the grid of the stack's tokens.
    shift: the shift of every second layer.
  """

  cells: Grid = Grid(0, 0)
  shift: int = 0

  @cached_property
  def period(self) -> int:
    return 2 if self.dims.layers % 2 == 0 else self.dims.layers

  def _attention(self, kind: type[Attention], rngs: nnx.Rngs, turn: int | None = None) -> Attention:
    shift = self.shift if turn % 2 else 0
    attention = partial(WindowAttention, grid=self.cells, side=self.grid.rows, shift=shift)
    return super()._attention(attention, rngs, turn)
