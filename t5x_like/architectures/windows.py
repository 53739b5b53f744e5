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
    _, rows, columns, _ = shape
    rolled_BYXD = jnp.roll(x_BYXD, (-self.shift, -self.shift), (1, 2))
    windows_BTD = split_windows(rolled_BYXD, self.side)
    context = dataclasses.replace(context, mask=self.mask(rows, columns))
    windows_BTD, aux, _ = super().__call__(windows_BTD, context, None, key)
    rolled_BYXD = join_windows(windows_BTD, shape, self.side)
    y_BYXD = jnp.roll(rolled_BYXD, (self.shift, self.shift), (1, 2))
    y_BYXD = y_BYXD[:, : self.grid.rows, : self.grid.columns]
    return y_BYXD.reshape(x_BTD.shape), aux, None

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
    # 0 to 3, by whether the row and the column were rolled
    parts_YX = 2 * is_rolled_Y.astype(np.int32)[:, None] + is_rolled_X
    parts_1YX1 = parts_YX[None, :, :, None].astype(np.int32)
    parts_1T1 = split_windows(parts_1YX1, self.side)
    segments_1T = jnp.asarray(parts_1T1[..., 0])
    return Mask(pos, pos, segments_1T, segments_1T)

  def attend(
    self, core: Core, q_BTX, k_BSKH, v_BSKH, mask: Mask, bias, key: jax.Array | None
  ) -> jax.Array:
    windowed_core = partial(_attend_within_windows, self.side**2, core)
    return super().attend(windowed_core, q_BTX, k_BSKH, v_BSKH, mask, bias, key)


def _attend_within_windows(
  cells: int, core: Core, q_BTNH, k_BSKH, v_BSKH, mask: Mask, *biases, key, **options
) -> jax.Array:
  """Run a core within each window of `cells` tokens, mapped over windows.

  The batch stays an axis of its own, which a TPU lays out next to the width: there, tokens need no
  padding, and whole windows are moved.
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

  def divide(x):
    """Divide into windows, with heads adjacent in the last axis, as projections write them.

    On TPU, an axis of narrow heads would be padded by every operation that moves it.
    """
    return x.reshape(len(x), count, cells, -1)

  segments = None
  segments_axis = None
  if mask.q_segments is not None:
    segments = divide(mask.q_segments)[..., 0]
    segments_axis = 1
  keys = None
  keys_axis = None
  if key is not None:
    keys = jax.random.split(key, count)
    keys_axis = 0
  attend_windows = jax.vmap(attend_window, (1, 1, 1, segments_axis, keys_axis), 1)
  o_BWTX = attend_windows(divide(q_BTNH), divide(k_BSKH), divide(v_BSKH), segments, keys)
  return o_BWTX.reshape(q_BTNH.shape)


def split_windows(x_BYXD, window: int):
  """Put tokens in the order of windows: [B, Y, X, D] -> [B, Y * X, D].

  Windows and their cells are in raster order.
  """
  B, Y, X, D = x_BYXD.shape
  by_row = x_BYXD.reshape(B, Y // window, window, X // window, window, D)
  by_window = by_row.transpose(0, 1, 3, 2, 4, 5)
  return by_window.reshape(B, -1, D)


def join_windows(x_BTD: jax.Array, shape: tuple[int, int, int, int], window: int) -> jax.Array:
  """Undo `split_windows`, for a grid of this shape."""
  B, Y, X, D = shape
  by_window = x_BTD.reshape(B, Y // window, X // window, window, window, D)
  by_row = by_window.transpose(0, 1, 3, 2, 4, 5)
  return by_row.reshape(shape)


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
    x_BYXD = x_BTD.reshape(B, Y, X, D)
    x_BYXD = jnp.pad(x_BYXD, ((0, 0), (0, Y % 2), (0, X % 2), (0, 0)))
    squares = x_BYXD.reshape(B, -(-Y // 2), 2, -(-X // 2), 2, D)
    cells = squares.transpose(0, 1, 3, 4, 2, 5)
    cells_BTX = cells.reshape(B, -1, 4 * D)
    if self.norm_first:
      y_BTD = self.linear(self.norm(cells_BTX))
    else:
      y_BTD = self.norm(self.linear(cells_BTX))
    return y_BTD, {}, None


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

  def _attention(
    self, kind: type[Attention], rngs: nnx.Rngs, layer_index: int | None = None
  ) -> Attention:
    shift = self.shift if layer_index % 2 else 0
    attention = partial(WindowAttention, grid=self.cells, side=self.grid.rows, shift=shift)
    return super()._attention(attention, rngs, layer_index)
