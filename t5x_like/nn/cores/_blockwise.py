"""A running softmax over blocks of logits, forward and backward, for the cores with linear memory.

The running maximum and sum follow Milakov and Gimelshein 2018; their use in attention follows Rabe
and Staats 2021 and Dao et al. 2022 (https://arxiv.org/abs/2205.14135, section 3.1 and appendix B).
Each pass is one loop over the list of blocks, so that a program has two loop bodies whatever the
length.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.nn.cores import Softmax
from t5x_like.nn.cores._blocks import pad_to, toeplitz
from t5x_like.nn.cores._devices import DeviceSlice
from t5x_like.nn.cores.dense import MASKED_LOGIT
from t5x_like.nn.dims import NO_DROPOUT, Dropout, dropout_mask
from t5x_like.nn.mask import Mask
from t5x_like.nn.positions import Position
from t5x_like.nn.remat import name_activation

_NONE = np.int32(2**31 - 1)


def plan_blocks(q, k, v, mask: Mask, softmax: Softmax, t: int, s: int) -> tuple["BlockGrid", tuple]:
  """Pad to whole blocks; return the static grid and the array arguments of `attend`, `forward` and
  `backward`.

  Args:
    q, k, v, mask, softmax: a core's `attend` arguments on a device, with a bias that is computed in
      pieces.
    t, s: queries and keys in a block; shorter sequences are one block.
  """
  B, T, N, H = q.shape
  S, K = k.shape[1:3]
  grid = BlockGrid.build(mask, softmax, T, S, min(t, T), min(s, S))
  rows = grid.rows * grid.t
  columns = grid.columns * grid.s
  k_valid = mask.k_valid
  if S < columns and k_valid is None:
    k_valid = jnp.ones((1, S), bool)
  fields = dataclasses.replace(
    mask,
    **{name: _padded(getattr(mask, name), rows) for name in ("q_pos", "q_segments")},
    **{name: _padded(getattr(mask, name), columns) for name in ("k_pos", "k_segments", "k_prefix")},
    k_valid=_padded(k_valid, columns),
  )
  q = pad_to(q.reshape(B, T, K, N // K, H), rows)
  schemes = [
    scheme for scheme in (softmax.bias, softmax.position) if scheme is not None and scheme.biased
  ]
  places = dataclasses.replace(
    softmax.device_slice, queries=pad_to(softmax.device_slice.queries, rows, 0)
  )
  return grid, (q, pad_to(k, columns), pad_to(v, columns), schemes, fields, softmax.key, places)


def _padded(x: jax.Array | None, length: int) -> jax.Array | None:
  return None if x is None else pad_to(x, length)


@dataclasses.dataclass(frozen=True)
class BlockGrid:
  """The static description of the blocks.

  Attributes:
    t, s: queries and keys in a block.
    rows, columns: number of blocks along either side.
    blocks: (row, column) of each computed block; at run time, blocks without a visible pair are
      skipped.
    aligned: see `Mask`.
    data_dependent: whether a block's visibility depends on arrays.
  """

  t: int
  s: int
  rows: int
  columns: int
  blocks: tuple[tuple[int, int], ...]
  aligned: bool
  data_dependent: bool
  softcap: float | None
  dropping: Dropout

  @classmethod
  def build(cls, mask: Mask, softmax: Softmax, T: int, S: int, t: int, s: int) -> "BlockGrid":
    rows = -(-T // t)
    columns = -(-S // s)
    known = mask.aligned and softmax.device_slice.has_all_queries
    blocks = [
      (r, c)
      for r in range(rows)
      for c in range(columns)
      if not known or _reached(mask, r * t, c * s, t, s)
    ]
    arrays = mask.q_segments, mask.k_valid, mask.k_prefix
    looked_at = any(x is not None for x in arrays) or (
      not known and (mask.causal or mask.window is not None)
    )
    dropping = NO_DROPOUT if softmax.key is None else softmax.dropout
    return cls(
      t, s, rows, columns, tuple(blocks), mask.aligned, looked_at, softmax.softcap, dropping
    )

  def visible(self, mask: Mask) -> jax.Array:
    """Return bool [blocks], False for blocks in which no query sees any key."""
    row, column = (np.asarray(side) for side in zip(*self.blocks, strict=True))

    def span(x_BL, size, chosen):
      """Return (smallest, largest) of every block: [b, blocks]."""
      x = x_BL.reshape(x_BL.shape[0], -1, size)
      return x.min(-1)[:, chosen], x.max(-1)[:, chosen]

    def segments(x_BL, size, chosen):
      """Do the same for segments, whose smallest ignores padding (0)."""
      return span(jnp.where(x_BL > 0, x_BL, _NONE), size, chosen)[0], span(x_BL, size, chosen)[1]

    (q_low, q_high), (k_low, k_high) = (
      span(mask.q_pos, self.t, row),
      span(mask.k_pos, self.s, column),
    )
    seen = jnp.ones((1, 1), bool)
    if mask.causal:
      seen &= k_low <= q_high
    if mask.causal and mask.k_prefix is not None:
      seen |= span(mask.k_prefix, self.s, column)[1]
    if mask.window is not None:
      seen &= (k_high > q_low - mask.window) & (k_low < q_high + mask.window)
    if mask.q_segments is not None:
      (q_low, q_high), (k_low, k_high) = (
        segments(mask.q_segments, self.t, row),
        segments(mask.k_segments, self.s, column),
      )
      seen &= (q_low <= k_high) & (k_low <= q_high)
    if mask.k_valid is not None:
      seen &= span(mask.k_valid, self.s, column)[1]
    return jnp.broadcast_to(seen.any(0), (len(self.blocks),))

  def loop(self, body, start, mask: Mask):
    """Fold `body(carry, row, column, seen)` over the blocks; `seen` is None where no array decides
    visibility."""
    index = jnp.asarray(np.asarray(self.blocks, np.int32))
    seen = self.visible(mask) if self.data_dependent else None

    def step(carry, block):
      (row, column), seen = block
      return body(carry, row, column, seen), None

    return jax.lax.scan(step, start, (index, seen))[0]

  def allowed(self, mask: Mask, row, column) -> jax.Array | None:
    """Return one block's mask, bool [B or 1, 1, t, s]; None if it is allowed everywhere."""
    q = partial(_cut, start=row * self.t, size=self.t)
    k = partial(_cut, start=column * self.s, size=self.s)
    sides = (
      q(mask.q_pos),
      k(mask.k_pos),
      q(mask.q_segments),
      k(mask.k_segments),
      k(mask.k_valid),
      k(mask.k_prefix),
    )
    return Mask(*sides, causal=mask.causal, window=mask.window).dense()

  def bias(self, schemes, mask: Mask, places: DeviceSlice, row, column) -> jax.Array | None:
    """Return one block's bias, float32 [B or 1, N or 1, t, s], differentiable in `schemes`; None
    without schemes."""
    parts = [self._scheme_bias(scheme, mask, places, row, column) for scheme in schemes]
    return sum(parts[1:], parts[0]) if parts else None

  def _scheme_bias(
    self, scheme: Position, mask: Mask, places: DeviceSlice, row, column
  ) -> jax.Array:
    if self.aligned:
      # from the block's first query to its first key
      first = column * self.s - (places.queries[0] + row * self.t)
      by_distance = scheme.bias_of_distance(first + jnp.arange(-(self.t - 1), self.s))
      if by_distance is not None:
        return toeplitz(places.select_heads(by_distance, 0), self.t, self.s)[None]
    q_pos = _cut(mask.q_pos, row * self.t, self.t)
    return places.select_heads(scheme.bias(q_pos, _cut(mask.k_pos, column * self.s, self.s)), 1)

  def dropout(self, weights_BNTS: jax.Array, key, places: DeviceSlice, row, column) -> jax.Array:
    """Drop weights: the same in both passes and on any mesh, whichever queries a device has."""
    if self.dropping.rate == 0.0:
      return weights_BNTS
    fold = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, column), places.rows)
    keys_BN = fold(keys, places.heads)
    queries = (
      jnp.zeros(1, jnp.int32)
      if self.dropping.shared
      else _cut(places.queries, row * self.t, self.t, axis=0)
    )

    def draw(key, query):
      return dropout_mask(jax.random.fold_in(key, query), self.dropping.rate, (self.s,))[0]

    keep = jax.vmap(jax.vmap(jax.vmap(draw, (None, 0)), (0, None)), (0, None))(keys_BN, queries)
    return jnp.where(keep, weights_BNTS / (1.0 - self.dropping.rate), 0.0)


def _reached(mask: Mask, q_start: int, k_start: int, t: int, s: int) -> bool:
  """Return whether any query of an aligned block may see any of its keys."""
  # the smallest distance from a query to a key; the largest is `behind`
  ahead = k_start - (q_start + t - 1)
  behind = k_start + s - 1 - q_start
  if mask.causal and mask.k_prefix is None and ahead > 0:
    return False
  return mask.window is None or (behind > -mask.window and ahead < mask.window)


def _cut(x: jax.Array | None, start, size: int, axis: int = 1) -> jax.Array | None:
  return None if x is None else jax.lax.dynamic_slice_in_dim(x, start, size, axis)


def _put(x: jax.Array, piece: jax.Array, start, axis: int) -> jax.Array:
  return jax.lax.dynamic_update_slice_in_dim(x, piece, start, axis)


def _logits(grid: BlockGrid, q, k, schemes, mask, places, row, column):
  """Return one block's (float32 logits [B, N, t, s], the same before the bias, mask of allowed
  pairs)."""
  B, t, K, G, _ = q.shape
  logits = jnp.einsum("BTKGH,BSKH->BKGTS", q, k, preferred_element_type=jnp.float32).reshape(
    B, K * G, t, -1
  )
  capped = logits if grid.softcap is None else grid.softcap * jnp.tanh(logits / grid.softcap)
  bias = grid.bias(schemes, mask, places, row, column)
  return capped if bias is None else capped + bias, capped, grid.allowed(mask, row, column)


def _grouped(x_BNTX: jax.Array, kv_heads: int) -> jax.Array:
  """Reshape [B, N, T, X] to [B, K, G, T, X]."""
  B, N, T, X = x_BNTX.shape
  return x_BNTX.reshape(B, kv_heads, N // kv_heads, T, X)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
  grid: BlockGrid,
  q,
  k,
  v,
  schemes,
  mask: Mask,
  key,
  places: DeviceSlice,
  sinks_N: jax.Array | None = None,
):
  """Attend over padded arrays; return [B, T, K, G, width of `v`] in the dtype of `q`.

  Args:
    sinks_N: for each head, a logit beside the keys' without a value (`sinks`); None for none.
  """
  return forward(grid, q, k, v, schemes, mask, key, places, sinks_N)[0].astype(q.dtype)


def forward(
  grid: BlockGrid, q, k, v, schemes, mask: Mask, key, places: DeviceSlice, sinks_N=None
) -> tuple[jax.Array, jax.Array]:
  """Return (float32 [B, T, K, G, width of `v`], float32 [B, N, T]: the logarithm of the sum of
  exp(logits))."""
  # JAX would hoist values that all layers of a scanned stack share: the masks and biases of all
  # blocks at once, T * S values per head. The barrier makes them depend on the layer.
  q, k, v, schemes, mask, places = jax.lax.optimization_barrier((q, k, v, schemes, mask, places))
  B, T, K, G, H = q.shape
  N = K * G
  t = grid.t
  s = grid.s
  X = v.shape[-1]

  def block(carry, row, column, seen):
    def compute(peak_BNT, total_BNT, out_BNTH):
      q_t = _cut(q, row * t, t)
      k_s = _cut(k, column * s, s)
      v_s = _cut(v, column * s, s)
      logits, _, allowed = _logits(grid, q_t, k_s, schemes, mask, places, row, column)
      if allowed is not None:
        logits = jnp.where(allowed, logits, MASKED_LOGIT)
      new_peak = jnp.maximum(peak_BNT, logits.max(-1))
      shrink = jnp.exp(peak_BNT - new_peak)
      weights = jnp.exp(logits - new_peak[..., None])
      if allowed is not None:
        weights = jnp.where(allowed, weights, 0.0)
      total_BNT = total_BNT * shrink + weights.sum(-1)
      weights = _grouped(grid.dropout(weights, key, places, row, column).astype(v.dtype), K)
      more = jnp.einsum("BKGTS,BSKH->BKGTH", weights, v_s, preferred_element_type=jnp.float32)
      return new_peak, total_BNT, out_BNTH * shrink[..., None] + more.reshape(B, N, t, X)

    pieces = tuple(_cut(x, row * t, t, axis=2) for x in carry)
    pieces = (
      compute(*pieces) if seen is None else jax.lax.cond(seen, compute, lambda *same: same, *pieces)
    )
    return tuple(_put(x, piece, row * t, 2) for x, piece in zip(carry, pieces, strict=True))

  start = jnp.full((B, N, T), MASKED_LOGIT, jnp.float32), jnp.zeros((B, N, T), jnp.float32)
  if sinks_N is not None:
    start = (
      jnp.broadcast_to(sinks_N.astype(jnp.float32)[:, None], (B, N, T)),
      jnp.ones((B, N, T), jnp.float32),
    )
  peak, total, out = grid.loop(block, (*start, jnp.zeros((B, N, T, X), jnp.float32)), mask)
  total = jnp.where(total > 0, total, 1.0)
  return jnp.moveaxis(out / total[..., None], 2, 1).reshape(*q.shape[:-1], X), peak + jnp.log(total)


def _kept(grid: BlockGrid, q, k, v, schemes, mask, key, places, sinks_N):
  out, log_sum = forward(grid, q, k, v, schemes, mask, key, places, sinks_N)
  out = out.astype(q.dtype)
  log_sum = name_activation(log_sum, "context")
  return out, (
    (q, k, v, schemes, mask, key, places, name_activation(out, "context"), log_sum),
    sinks_N,
  )


def _backward(grid: BlockGrid, kept, d_out):
  kept, sinks_N = kept
  found = jax.tree.map(lambda d, x: d.astype(x.dtype), backward(grid, kept, d_out), kept[:4])
  if sinks_N is None:
    return *found, None, None, None, None
  *_, out, log_sum_BNT = kept
  inner_BNT = jnp.einsum(
    "BTKGH,BTKGH->BKGT", d_out, out, preferred_element_type=jnp.float32
  ).reshape(log_sum_BNT.shape)
  d_sinks_N = -jnp.sum(jnp.exp(sinks_N[:, None] - log_sum_BNT) * inner_BNT, axis=(0, 2))
  return *found, None, None, None, d_sinks_N.astype(sinks_N.dtype)


def backward(grid: BlockGrid, kept: tuple, d_out: jax.Array) -> tuple:
  """Return the gradients of (q, k, v, schemes), in float32.

  Args:
    kept: the arguments of `forward`, its result and its log-sums. The last two may cover more keys
      than `k`; the gradients of `q` and the schemes are then the contributions of the keys in `k`.
  """
  q, k, v, schemes, mask, key, places, out, log_sum_BNT = kept
  B, T, K, G, H = q.shape
  N = K * G
  t = grid.t
  s = grid.s
  d_out = d_out.astype(v.dtype)
  # The term that the gradient of a softmax subtracts (Dao et al., appendix B).
  inner_BNT = jnp.einsum(
    "BTKGH,BTKGH->BKGT", d_out, out, preferred_element_type=jnp.float32
  ).reshape(B, N, T)

  def block(carry, row, column, seen):
    dq, dk, dv, d_schemes = carry

    def compute(dq_t, dk_s, dv_s, d_schemes):
      q_t = _cut(q, row * t, t)
      d_out_t = _cut(d_out, row * t, t)
      k_s = _cut(k, column * s, s)
      v_s = _cut(v, column * s, s)
      logits, capped, allowed = _logits(grid, q_t, k_s, schemes, mask, places, row, column)
      weights = jnp.exp(logits - _cut(log_sum_BNT, row * t, t, axis=2)[..., None])
      if allowed is not None:
        weights = jnp.where(allowed, weights, 0.0)
      dropped = _grouped(grid.dropout(weights, key, places, row, column).astype(v.dtype), K)
      dv_s = dv_s + jnp.einsum(
        "BKGTS,BTKGH->BSKH", dropped, d_out_t, preferred_element_type=jnp.float32
      )
      d_weights = jnp.einsum("BTKGH,BSKH->BKGTS", d_out_t, v_s, preferred_element_type=jnp.float32)
      d_weights = grid.dropout(d_weights.reshape(weights.shape), key, places, row, column)
      d_logits = weights * (d_weights - _cut(inner_BNT, row * t, t, axis=2)[..., None])
      if schemes:
        block, pull = jax.vjp(
          lambda schemes: grid.bias(schemes, mask, places, row, column), schemes
        )
        shared = tuple(axis for axis in (0, 1) if block.shape[axis] == 1 < d_logits.shape[axis])
        d_schemes = jax.tree.map(jnp.add, d_schemes, pull(d_logits.sum(shared, keepdims=True))[0])
      if grid.softcap is not None:
        d_logits = d_logits * (1 - (capped / grid.softcap) ** 2)
      d_logits = _grouped(d_logits.astype(q.dtype), K)
      dq_t = dq_t + jnp.einsum(
        "BKGTS,BSKH->BTKGH", d_logits, k_s, preferred_element_type=jnp.float32
      )
      dk_s = dk_s + jnp.einsum(
        "BKGTS,BTKGH->BSKH", d_logits, q_t, preferred_element_type=jnp.float32
      )
      return dq_t, dk_s, dv_s, d_schemes

    pieces = _cut(dq, row * t, t), _cut(dk, column * s, s), _cut(dv, column * s, s), d_schemes
    pieces = (
      compute(*pieces) if seen is None else jax.lax.cond(seen, compute, lambda *same: same, *pieces)
    )
    dq_t, dk_s, dv_s, d_schemes = pieces
    return (
      _put(dq, dq_t, row * t, 1),
      _put(dk, dk_s, column * s, 1),
      _put(dv, dv_s, column * s, 1),
      d_schemes,
    )

  zeros = partial(jax.tree.map, lambda x: jnp.zeros(x.shape, jnp.float32))
  return grid.loop(block, (zeros(q), zeros(k), zeros(v), zeros(schemes)), mask)


attend.defvjp(_kept, _backward)
