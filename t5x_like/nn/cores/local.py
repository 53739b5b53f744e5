"""Sliding-window attention whose cost is linear in the length.

It follows Beltagy et al. 2020, section 3.1, and Child et al. 2019. The sequence is cut into blocks
as long as the window. A block of queries attends to its own block of keys, the previous one and,
unless the mask is causal, the next one: its neighbourhood. The mask, with its exact window, applies
within the neighbourhood, so the result equals dense attention with the same mask.

Blocks are cut by array index, but the window is measured in positions. The two agree if positions
grow by one from slot to slot within a sequence, as they do in plain and in packed rows. A packed
sequence lies in adjacent slots, so a key outside the neighbourhood is at least a window away or
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
  """Attend within a sliding window, computing logits only for neighbouring blocks.

  The result equals the dense core's with the same window for queries that see at least one key, and
  is finite for all others.

  Args:
    window: the core's window, counted as in `Mask.window`; if the mask has a window too, the
      narrower one applies. None for the mask's window (`design.windows`).
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
    blocks = _Blocks.from_mask(mask, T)
    n = blocks.count
    w = blocks.size

    q = blocks.split_queries(q.reshape(B, T, K, N // K, H))
    logits = wide_einsum("BnTKGH,BnSKH->BnKGTS", q, blocks.gather_keys(k))
    logits = softmax.cap(logits.reshape(B, n, N, w, -1))
    if isinstance(softmax.bias, jax.Array):
      logits = logits + blocks.gather_bias(softmax.bias)
      softmax = dataclasses.replace(softmax, bias=None)
    bias = softmax.total_bias(*blocks.block_positions(mask))
    if bias is not None:
      logits = logits + bias.reshape(-1, n, *bias.shape[1:])

    weights = Dense.weights(logits, blocks.dense_mask(mask), v.dtype)
    weights = softmax.dropout(weights, softmax.key).reshape(B, n, K, N // K, w, -1)
    out = jnp.einsum("BnKGTS,BnSKH->BnTKGH", weights, blocks.gather_keys(v))
    return out.reshape(B, n * w, N, H)[:, :T]

  def for_decoding(self) -> Core:
    return Dense() if self.window is None else WindowedDense(self.window)


class WindowedDense(Dense):
  """The dense core with a window, which replaces `Local` for decoding with a cache."""

  def __init__(self, window: int):
    self.window = window

  def attend(self, q, k, v, mask, softmax):
    return super().attend(q, k, v, narrow_window(mask, self.window), softmax)


def narrow_window(mask: Mask, window: int | None) -> Mask:
  """Restrict the mask to a window; None leaves the mask unchanged."""
  if window is None:
    return mask
  if mask.window is not None:
    window = min(window, mask.window)
  return dataclasses.replace(mask, window=window)


@dataclasses.dataclass(frozen=True)
class _Blocks:
  """A sequence cut into n blocks of w tokens, as long as the window.

  Attributes:
    count, size: n and w.
    offsets: the blocks of keys in the neighbourhood of a block of queries, relative to its index.
  """

  count: int
  size: int
  offsets: tuple[int, ...]

  @classmethod
  def from_mask(cls, mask: Mask, length: int) -> "_Blocks":
    """Return the blocks of a sequence of `length` tokens for the mask's window and causality."""
    size = min(mask.window, length)
    count = -(-length // size)
    if count == 1:
      return cls(count, size, (0,))
    if mask.causal and mask.k_prefix is None:
      return cls(count, size, (-1, 0))
    return cls(count, size, (-1, 0, 1))

  def split_queries(self, x: jax.Array) -> jax.Array:
    """Cut into blocks: [B, T, ...] -> [B, n, w, ...]."""
    return split_blocks(x, self.count, self.size)

  def gather_keys(self, x: jax.Array) -> jax.Array:
    """Gather each block's neighbourhood: [B, T, ...] -> [B, n, keys of the neighbourhood, ...].

    Keys before the first block and after the last are zeros or False.
    """
    x = split_blocks(x, self.count, self.size)
    x = jnp.pad(x, [(0, 0), (1, 1)] + [(0, 0)] * (x.ndim - 2))
    neighbours = [x[:, 1 + offset : 1 + offset + self.count] for offset in self.offsets]
    return jnp.concatenate(neighbours, axis=2)

  def block_positions(self, mask: Mask) -> tuple[jax.Array, jax.Array]:
    """Return the positions of queries and of keys, with one row for each block of each sequence."""
    rows = max(mask.q_pos.shape[0], mask.k_pos.shape[0])
    q_pos = self._as_rows(mask.q_pos, rows, self.split_queries)
    k_pos = self._as_rows(mask.k_pos, rows, self.gather_keys)
    return q_pos, k_pos

  def dense_mask(self, mask: Mask) -> jax.Array:
    """Return the mask within blocks, bool [B or 1, n, 1, w, keys of the neighbourhood]."""
    k_valid = mask.k_valid
    if k_valid is None:
      k_valid = jnp.ones((1, mask.k_pos.shape[1]), bool)
    query_fields = {"q_pos": mask.q_pos, "q_segments": mask.q_segments}
    key_fields = {
      "k_pos": mask.k_pos,
      "k_segments": mask.k_segments,
      "k_valid": k_valid,
      "k_prefix": mask.k_prefix,
    }
    fields = query_fields | key_fields
    rows = max(x.shape[0] for x in fields.values() if x is not None)
    block_fields = {}
    for name, x in fields.items():
      cut = self.split_queries if name in query_fields else self.gather_keys
      block_fields[name] = self._as_rows(x, rows, cut)
    allowed = Mask(**block_fields, causal=mask.causal, window=mask.window).dense()
    return allowed.reshape(rows, self.count, *allowed.shape[1:])

  def gather_bias(self, bias_BNTS: jax.Array) -> jax.Array:
    """Gather the blocks of a bias that are on the diagonal or next to it.

    Returns:
      [B or 1, n, N, w, keys of the neighbourhood]
    """
    n = self.count
    columns = split_blocks(bias_BNTS, n, self.size, axis=3)
    blocks = split_blocks(columns, n, self.size, axis=2)  # [B or 1, N, n, w, n, w]
    i = jnp.arange(n)
    diagonals = []
    for offset in self.offsets:
      diagonals.append(blocks[:, :, i, :, jnp.clip(i + offset, 0, n - 1)])  # [n, B or 1, N, w, w]
    return jnp.moveaxis(jnp.concatenate(diagonals, axis=-1), 0, 1)

  def _as_rows(self, x: jax.Array | None, rows: int, cut: Callable) -> jax.Array | None:
    """Broadcast to `rows` sequences, cut, and merge axes: [rows or 1, T] -> [rows * n, ...]."""
    if x is None:
      return None
    x = cut(jnp.broadcast_to(x, (rows, *x.shape[1:])))
    return x.reshape(-1, x.shape[2])


make = Local
