"""Sliding-window attention whose cost is linear in the length.

It follows Beltagy et al. 2020, section 3.1, and Child et al. 2019. The sequence is cut into blocks
as long as the window. A block of queries reads its own block of keys, the one before and, unless
causal, the one after. The mask's window applies exactly within these, so the result equals dense
attention with the same mask.

Blocks are cut by array index; the window is measured in positions. The two agree if positions grow
by one from slot to slot within a sequence, as they do in plain and in packed rows. A packed
sequence lies in adjacent slots, so a key outside the three blocks is at least a window away or
belongs to another sequence.

Cost, with window W: T * 2W (causal) or T * 3W logits per head in FLOPs and in memory, forward and
backward.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from t5x_like.nn.cores import Core
from t5x_like.nn.cores._blocks import split_blocks
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.linear import wide_einsum
from t5x_like.nn.mask import Mask
from t5x_like.slots import PositiveInt


class Local(Core):
  """Equal to the dense core with the same window for queries that see a key; finite for others.

  Args:
    window: the core's own window, counted as in `Mask.window`; if the mask has one too, the
      narrower applies. None leaves it to the mask (`design.windows`).
  """

  refuses = ("query_bias", "lengths")
  piecewise_bias_above = 0

  def __init__(self, *, window: PositiveInt | None = None):
    self.window = window

  def attend(self, q, k, v, mask, softmax):
    mask = narrow_window(mask, self.window)
    if mask.window is None:
      raise self.refusal(
        "attention without a window (set design.windows or the core's own 'window')"
      )
    B, T, N, H = q.shape
    K = k.shape[2]
    blocks = _Blocks.cut(mask, T)
    n = blocks.count
    w = blocks.size

    q = blocks.queries(q.reshape(B, T, K, N // K, H))
    logits = wide_einsum("BnTKGH,BnSKH->BnKGTS", q, blocks.keys(k))
    logits = softmax.cap(logits.reshape(B, n, N, w, -1))
    if isinstance(softmax.bias, jax.Array):
      logits = logits + blocks.diagonals(softmax.bias)
      softmax = dataclasses.replace(softmax, bias=None)
    bias = softmax.total_bias(*blocks.positions(mask))
    if bias is not None:
      logits = logits + bias.reshape(-1, n, *bias.shape[1:])

    weights = Dense.weights(logits, blocks.allowed(mask), v.dtype)
    weights = softmax.dropout(weights, softmax.key).reshape(B, n, K, N // K, w, -1)
    out = jnp.einsum("BnKGTS,BnSKH->BnTKGH", weights, blocks.keys(v))
    return out.reshape(B, n * w, N, H)[:, :T]

  def for_decoding(self) -> Core:
    return Dense() if self.window is None else WindowedDense(self.window)


class WindowedDense(Dense):
  """The dense core with a window, for steps of `Local` against a cache."""

  def __init__(self, window: int):
    self.window = window

  def attend(self, q, k, v, mask, softmax):
    return super().attend(q, k, v, narrow_window(mask, self.window), softmax)


def narrow_window(mask: Mask, window: int | None) -> Mask:
  """Restrict the mask to a window; None leaves it as it is."""
  if window is None:
    return mask
  if mask.window is not None:
    window = min(window, mask.window)
  return dataclasses.replace(mask, window=window)


@dataclasses.dataclass(frozen=True)
class _Blocks:
  """A sequence cut into blocks as long as the window, of which each reads its neighbours.

  Attributes:
    count, size: number of blocks, and tokens in a block.
    offsets: the blocks of keys that a block of queries reads, relative to it.
  """

  count: int
  size: int
  offsets: tuple[int, ...]

  @classmethod
  def cut(cls, mask: Mask, length: int) -> "_Blocks":
    size = min(mask.window, length)
    count = -(-length // size)
    if count == 1:
      return cls(count, size, (0,))
    if mask.causal and mask.k_prefix is None:
      return cls(count, size, (-1, 0))
    return cls(count, size, (-1, 0, 1))

  def queries(self, x: jax.Array) -> jax.Array:
    """Cut into blocks: [B, T, ...] -> [B, n, w, ...]."""
    return split_blocks(x, self.count, self.size)

  def keys(self, x: jax.Array) -> jax.Array:
    """Gather neighbours: [B, T, ...] -> [B, n, keys of the neighbourhood, ...].

    Beyond the ends, keys are zeros (False).
    """
    x = split_blocks(x, self.count, self.size)
    x = jnp.pad(x, [(0, 0), (1, 1)] + [(0, 0)] * (x.ndim - 2))
    return jnp.concatenate([x[:, 1 + o : 1 + o + self.count] for o in self.offsets], axis=2)

  def positions(self, mask: Mask) -> tuple[jax.Array, jax.Array]:
    """Return the positions of queries and keys with every block as a row of its own."""
    rows = max(mask.q_pos.shape[0], mask.k_pos.shape[0])
    return self._block_rows(mask.q_pos, rows, self.queries), self._block_rows(
      mask.k_pos, rows, self.keys
    )

  def allowed(self, mask: Mask) -> jax.Array:
    """Return the mask within blocks, bool [B or 1, n, 1, w, keys of the neighbourhood]."""
    k_valid = mask.k_valid
    if k_valid is None:
      k_valid = jnp.ones((1, mask.k_pos.shape[1]), bool)
    fields = [  # each with the function that cuts it
      (mask.q_pos, self.queries),
      (mask.k_pos, self.keys),
      (mask.q_segments, self.queries),
      (mask.k_segments, self.keys),
      (k_valid, self.keys),
      (mask.k_prefix, self.keys),
    ]
    rows = max(x.shape[0] for x, _ in fields if x is not None)
    block_fields = [self._block_rows(x, rows, cut) for x, cut in fields]
    allowed = Mask(*block_fields, causal=mask.causal, window=mask.window).dense()
    return allowed.reshape(rows, self.count, *allowed.shape[1:])

  def diagonals(self, bias_BNTS: jax.Array) -> jax.Array:
    """Gather the blocks on and next to the diagonal of a whole bias.

    Returns:
      [B or 1, n, N, w, keys of the neighbourhood]
    """
    n = self.count
    columns = split_blocks(bias_BNTS, n, self.size, axis=3)
    grid = split_blocks(columns, n, self.size, axis=2)  # [B or 1, N, n, w, n, w]
    i = jnp.arange(n)
    # each [n, B or 1, N, w, w]
    pieces = [grid[:, :, i, :, jnp.clip(i + o, 0, n - 1)] for o in self.offsets]
    return jnp.moveaxis(jnp.concatenate(pieces, axis=-1), 0, 1)

  def _block_rows(self, x: jax.Array | None, rows: int, cut: Callable) -> jax.Array | None:
    """Broadcast to `rows`, and make every block a row of its own: [b, T] -> [rows * n, ...]."""
    if x is None:
      return None
    x = cut(jnp.broadcast_to(x, (rows, *x.shape[1:])))
    return x.reshape(-1, x.shape[2])


make = Local
