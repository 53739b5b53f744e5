"""Sliding-window attention whose cost is linear in the length (Beltagy et al. 2020, section 3.1;
Child et al. 2019).

The sequence is cut into blocks as long as the window. A block of queries reads its own block of
keys, the one before and, unless causal, the one after. The mask's window applies exactly within
these, so the result equals dense attention with the same mask.

Blocks are cut by slot; the window is measured in positions. The two agree if positions grow by one
from slot to slot within a sequence, as they do in plain and in packed rows. A packed sequence lies
in adjacent slots, so a key outside the three blocks is at least a window away or belongs to another
sequence.

Cost, with window W: T * 2W (causal) or T * 3W logits per head in FLOPs and in memory, forward and
backward.
"""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_like.nn.cores import Core
from t5x_like.nn.cores._blocks import split_blocks
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.linear import wide_einsum
from t5x_like.nn.mask import Mask
from t5x_like.slots import PositiveInt


class Local(Core):
  """Equal to the dense core with the same window for queries that see any key at all (finite for
  others).

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
    (B, T, N, H), K = q.shape, k.shape[2]
    w = min(mask.window, T)
    n = -(-T // w)
    offsets = (0,) if n == 1 else (-1, 0) if mask.causal and mask.k_prefix is None else (-1, 0, 1)

    def near(x):
      """Gather neighbours: [B, T, ...] -> [B, n, keys of the neighbourhood, ...]; False or zero
      beyond the ends."""
      x = split_blocks(x, n, w)
      x = jnp.pad(x, [(0, 0), (1, 1)] + [(0, 0)] * (x.ndim - 2))
      return jnp.concatenate([x[:, 1 + o : 1 + o + n] for o in offsets], axis=2)

    def rows(x, cut):
      """Make every block a row of its own: [b, T] -> [b * n, ...]."""
      x = cut(x)
      return x.reshape(-1, x.shape[2])

    def own(x):
      return split_blocks(x, n, w)

    q = own(q.reshape(B, T, K, N // K, H))
    logits = wide_einsum("BnTKGH,BnSKH->BnKGTS", q, near(k))
    logits = softmax.cap(logits.reshape(B, n, N, w, -1))
    if isinstance(softmax.bias, jax.Array):
      logits = logits + _diagonals(softmax.bias, n, w, offsets)
      softmax = dataclasses.replace(softmax, bias=None)
    lead = max(mask.q_pos.shape[0], mask.k_pos.shape[0])
    q_pos = _broadcast(mask.q_pos, lead)
    k_pos = _broadcast(mask.k_pos, lead)
    added = softmax.total_bias(rows(q_pos, own), rows(k_pos, near))
    if added is not None:
      logits = logits + added.reshape(-1, n, *added.shape[1:])

    valid = jnp.ones((1, T), bool) if mask.k_valid is None else mask.k_valid
    fields = mask.q_pos, mask.k_pos, mask.q_segments, mask.k_segments, valid, mask.k_prefix
    lead = max(x.shape[0] for x in fields if x is not None)
    cuts = own, near, own, near, near, near
    fields = [
      x if x is None else rows(_broadcast(x, lead), cut)
      for x, cut in zip(fields, cuts, strict=True)
    ]
    allowed = Mask(*fields, causal=mask.causal, window=mask.window).dense()
    probs = Dense.weights(logits, allowed.reshape(lead, n, *allowed.shape[1:]), v.dtype)
    probs = softmax.dropout(probs, softmax.key)
    probs = probs.reshape(B, n, K, N // K, w, -1)
    out = jnp.einsum("BnKGTS,BnSKH->BnTKGH", probs, near(v))
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
  """Restrict the mask to a window."""
  if window is None:
    return mask
  return dataclasses.replace(
    mask, window=window if mask.window is None else min(window, mask.window)
  )


def _broadcast(x: jax.Array, lead: int) -> jax.Array:
  return jnp.broadcast_to(x, (lead, *x.shape[1:]))


def _diagonals(bias_BNTS: jax.Array, n: int, w: int, offsets: tuple[int, ...]) -> jax.Array:
  """Gather the blocks on and beside the diagonal of a whole bias: [B or 1, n, N, w, keys of the
  neighbourhood]."""
  grid = split_blocks(
    split_blocks(bias_BNTS, n, w, axis=3), n, w, axis=2
  )  # [B or 1, N, n, w, n, w]
  i = jnp.arange(n)
  # each [n, B or 1, N, w, w]
  pieces = [grid[:, :, i, :, jnp.clip(i + o, 0, n - 1)] for o in offsets]
  return jnp.moveaxis(jnp.concatenate(pieces, axis=-1), 0, 1)


make = Local
