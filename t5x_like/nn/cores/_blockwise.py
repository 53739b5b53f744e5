"""A running softmax over blocks of logits, forward and backward, for cores with linear memory.

The running maximum and sum follow Milakov and Gimelshein 2018; their use in attention follows Rabe
and Staats 2021 and Dao et al. 2022 (https://arxiv.org/abs/2205.14135, section 3.1 and appendix B).
Each pass is one loop over the list of blocks, so that a program has two loop bodies whatever the
length.
"""

import dataclasses
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.nn.cores import Softmax
from t5x_like.nn.cores._blocks import expand_to_toeplitz, pad_to
from t5x_like.nn.cores._devices import DeviceSlice
from t5x_like.nn.cores.dense import MASKED_LOGIT
from t5x_like.nn.dims import NO_DROPOUT, Dropout, dropout_mask
from t5x_like.nn.mask import Mask
from t5x_like.nn.positions import Position
from t5x_like.nn.remat import name_activation

# A segment above all others, so that padding does not lower the smallest segment of a block.
_NO_SEGMENT = np.int32(2**31 - 1)


def plan_blocks(q, k, v, mask: Mask, softmax: Softmax, t: int, s: int) -> tuple["BlockGrid", tuple]:
  """Pad to whole blocks; return the static grid and the array arguments of `attend`.

  `forward` and `backward` take the same arguments.

  Args:
    q, k, v, mask, softmax: a core's `attend` arguments on a device, with a bias that is computed in
      pieces.
    t, s: queries and keys in a block; shorter sequences are one block.
  """
  B, T, N, H = q.shape
  S, K = k.shape[1:3]
  grid = BlockGrid.build(mask, softmax, T, S, min(t, T), min(s, S))
  T_padded = grid.rows * grid.t
  S_padded = grid.columns * grid.s
  k_valid = mask.k_valid
  if S < S_padded and k_valid is None:
    k_valid = jnp.ones((1, S), bool)
  padded_mask = dataclasses.replace(
    mask,
    q_pos=pad_to(mask.q_pos, T_padded),
    q_segments=_pad_optional(mask.q_segments, T_padded),
    k_pos=pad_to(mask.k_pos, S_padded),
    k_segments=_pad_optional(mask.k_segments, S_padded),
    k_prefix=_pad_optional(mask.k_prefix, S_padded),
    k_valid=_pad_optional(k_valid, S_padded),
  )
  q = pad_to(q.reshape(B, T, K, N // K, H), T_padded)
  k = pad_to(k, S_padded)
  v = pad_to(v, S_padded)
  schemes = []
  for scheme in (softmax.bias, softmax.position):
    if scheme is not None and scheme.biased:
      schemes.append(scheme)
  queries = pad_to(softmax.device_slice.queries, T_padded, 0)
  device_slice = dataclasses.replace(softmax.device_slice, queries=queries)
  return grid, (q, k, v, schemes, padded_mask, softmax.key, device_slice)


def _pad_optional(x: jax.Array | None, length: int) -> jax.Array | None:
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
    softcap, dropout: see `Softmax`; no dropout without a key.
  """

  t: int
  s: int
  rows: int
  columns: int
  blocks: tuple[tuple[int, int], ...]
  aligned: bool
  data_dependent: bool
  softcap: float | None
  dropout: Dropout

  @classmethod
  def build(cls, mask: Mask, softmax: Softmax, T: int, S: int, t: int, s: int) -> "BlockGrid":
    rows = -(-T // t)
    columns = -(-S // s)
    # Array indices determine which blocks are visible only if they equal positions.
    known_by_index = mask.aligned and softmax.device_slice.has_all_queries
    blocks = []
    for row, column in itertools.product(range(rows), range(columns)):
      if not known_by_index or _may_see(mask, row * t, column * s, t, s):
        blocks.append((row, column))
    optional_arrays = (mask.q_segments, mask.k_valid, mask.k_prefix)
    data_dependent = any(x is not None for x in optional_arrays)
    if not known_by_index and (mask.causal or mask.window is not None):
      data_dependent = True
    return cls(
      t=t,
      s=s,
      rows=rows,
      columns=columns,
      blocks=tuple(blocks),
      aligned=mask.aligned,
      data_dependent=data_dependent,
      softcap=softmax.softcap,
      dropout=NO_DROPOUT if softmax.key is None else softmax.dropout,
    )

  def visible(self, mask: Mask) -> jax.Array:
    """Return bool [blocks], False for blocks in which no query sees any key."""
    index = np.asarray(self.blocks)
    row = index[:, 0]
    column = index[:, 1]
    q_low, q_high = _block_range(mask.q_pos, self.t, row)
    k_low, k_high = _block_range(mask.k_pos, self.s, column)
    visible = jnp.ones((1, 1), bool)
    if mask.causal:
      visible &= k_low <= q_high
    if mask.causal and mask.k_prefix is not None:
      visible |= _block_range(mask.k_prefix, self.s, column)[1]
    if mask.window is not None:
      visible &= (k_high > q_low - mask.window) & (k_low < q_high + mask.window)
    if mask.q_segments is not None:
      q_low, q_high = _segment_range(mask.q_segments, self.t, row)
      k_low, k_high = _segment_range(mask.k_segments, self.s, column)
      visible &= (q_low <= k_high) & (k_low <= q_high)
    if mask.k_valid is not None:
      visible &= _block_range(mask.k_valid, self.s, column)[1]
    return jnp.broadcast_to(visible.any(0), (len(self.blocks),))

  def loop(self, body, start, mask: Mask):
    """Fold `body(carry, row, column, visible)` over the blocks.

    `visible` is None where no array decides visibility.
    """
    index = jnp.asarray(np.asarray(self.blocks, np.int32))
    visible = self.visible(mask) if self.data_dependent else None

    def step(carry, block):
      (row, column), block_visible = block
      return body(carry, row, column, block_visible), None

    return jax.lax.scan(step, start, (index, visible))[0]

  def allowed(self, mask: Mask, row, column) -> jax.Array | None:
    """Return one block's mask, bool [B or 1, 1, t, s]; None if it is allowed everywhere."""
    cut_queries = partial(_cut, start=row * self.t, size=self.t)
    cut_keys = partial(_cut, start=column * self.s, size=self.s)
    block_mask = Mask(
      cut_queries(mask.q_pos),
      cut_keys(mask.k_pos),
      cut_queries(mask.q_segments),
      cut_keys(mask.k_segments),
      cut_keys(mask.k_valid),
      cut_keys(mask.k_prefix),
      causal=mask.causal,
      window=mask.window,
    )
    return block_mask.dense()

  def bias(self, schemes, mask: Mask, device_slice: DeviceSlice, row, column) -> jax.Array | None:
    """Return one block's bias, float32 [B or 1, N or 1, t, s], differentiable in `schemes`.

    Return None without schemes.
    """
    total = None
    for scheme in schemes:
      bias = self._scheme_bias(scheme, mask, device_slice, row, column)
      total = bias if total is None else total + bias
    return total

  def _scheme_bias(
    self, scheme: Position, mask: Mask, device_slice: DeviceSlice, row, column
  ) -> jax.Array:
    if self.aligned:
      # from the block's first query to its first key
      first = column * self.s - (device_slice.queries[0] + row * self.t)
      by_distance = scheme.bias_of_distance(first + jnp.arange(-(self.t - 1), self.s))
      if by_distance is not None:
        bias_NX = device_slice.select_heads(by_distance, 0)
        return expand_to_toeplitz(bias_NX, self.t, self.s)[None]
    q_pos = _cut(mask.q_pos, row * self.t, self.t)
    k_pos = _cut(mask.k_pos, column * self.s, self.s)
    return device_slice.select_heads(scheme.bias(q_pos, k_pos), 1)

  def drop(self, weights_BNTS: jax.Array, key, device_slice: DeviceSlice, row, column) -> jax.Array:
    """Drop weights: the same in both passes and on any mesh, whichever queries a device has."""
    rate = self.dropout.rate
    if rate == 0.0:
      return weights_BNTS
    column_key = jax.random.fold_in(key, column)
    keys_B = jax.vmap(jax.random.fold_in, (None, 0))(column_key, device_slice.rows)
    keys_BN = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(
      keys_B, device_slice.heads
    )
    if self.dropout.shared:
      queries = jnp.zeros(1, jnp.int32)
    else:
      queries = _cut(device_slice.queries, row * self.t, self.t, axis=0)

    def draw(key, query):
      return dropout_mask(jax.random.fold_in(key, query), rate, (self.s,))[0]

    keep = jax.vmap(jax.vmap(jax.vmap(draw, (None, 0)), (0, None)), (0, None))(keys_BN, queries)
    return jnp.where(keep, weights_BNTS / (1.0 - rate), 0.0)

  def logits(
    self, q, k, schemes, mask: Mask, device_slice: DeviceSlice, row, column
  ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Compute one block's logits.

    Returns:
      (float32 logits [B, N, t, s], the same before the bias, the mask of allowed pairs)
    """
    B, t, K, G, _ = q.shape
    logits = jnp.einsum("BTKGH,BSKH->BKGTS", q, k, preferred_element_type=jnp.float32)
    logits = logits.reshape(B, K * G, t, -1)
    if self.softcap is not None:
      logits = self.softcap * jnp.tanh(logits / self.softcap)
    bias = self.bias(schemes, mask, device_slice, row, column)
    biased_logits = logits if bias is None else logits + bias
    return biased_logits, logits, self.allowed(mask, row, column)


def _may_see(mask: Mask, q_start: int, k_start: int, t: int, s: int) -> bool:
  """Return whether any query of an aligned block may see any of its keys."""
  smallest_distance = k_start - (q_start + t - 1)
  largest_distance = k_start + s - 1 - q_start
  if mask.causal and mask.k_prefix is None and smallest_distance > 0:
    return False
  if mask.window is None:
    return True
  return largest_distance > -mask.window and smallest_distance < mask.window


def _block_range(x_BL: jax.Array, size: int, index: np.ndarray) -> tuple[jax.Array, jax.Array]:
  """Return (smallest, largest) of the blocks with these indices: [B or 1, blocks] each."""
  x = x_BL.reshape(x_BL.shape[0], -1, size)
  return x.min(-1)[:, index], x.max(-1)[:, index]


def _segment_range(x_BL: jax.Array, size: int, index: np.ndarray) -> tuple[jax.Array, jax.Array]:
  """Return (smallest, largest) segment of the blocks; the smallest ignores padding (0)."""
  smallest, _ = _block_range(jnp.where(x_BL > 0, x_BL, _NO_SEGMENT), size, index)
  _, largest = _block_range(x_BL, size, index)
  return smallest, largest


def _cut(x: jax.Array | None, start, size: int, axis: int = 1) -> jax.Array | None:
  return None if x is None else jax.lax.dynamic_slice_in_dim(x, start, size, axis)


def _put(x: jax.Array, piece: jax.Array, start, axis: int) -> jax.Array:
  return jax.lax.dynamic_update_slice_in_dim(x, piece, start, axis)


def _group_heads(x_BNTX: jax.Array, kv_heads: int) -> jax.Array:
  """Reshape [B, N, T, X] to [B, K, G, T, X]."""
  B, N, T, X = x_BNTX.shape
  return x_BNTX.reshape(B, kv_heads, N // kv_heads, T, X)


def _compute_if(visible: jax.Array | None, compute, *pieces):
  """Return `compute(*pieces)`, or the pieces as they are if the block is not visible."""
  if visible is None:
    return compute(*pieces)
  return jax.lax.cond(visible, compute, lambda *pieces: pieces, *pieces)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
  grid: BlockGrid,
  q,
  k,
  v,
  schemes,
  mask: Mask,
  key,
  device_slice: DeviceSlice,
  sinks_N: jax.Array | None = None,
):
  """Attend over padded arrays; return [B, T, K, G, width of `v`] in the dtype of `q`.

  Args:
    sinks_N: for each head, an additional logit without a value (`sinks`); None for none.
  """
  return forward(grid, q, k, v, schemes, mask, key, device_slice, sinks_N)[0].astype(q.dtype)


def forward(
  grid: BlockGrid, q, k, v, schemes, mask: Mask, key, device_slice: DeviceSlice, sinks_N=None
) -> tuple[jax.Array, jax.Array]:
  """Attend over padded arrays in float32.

  Returns:
    ([B, T, K, G, width of `v`], [B, N, T]: the logarithm of the sum of exp(logits))
  """
  # JAX would hoist values that all layers of a scanned stack share: the masks and biases of all
  # blocks at once, T * S values per head. The barrier makes them depend on the layer.
  q, k, v, schemes, mask, device_slice = jax.lax.optimization_barrier(
    (q, k, v, schemes, mask, device_slice)
  )
  B, T, K, G, H = q.shape
  N = K * G
  t = grid.t
  s = grid.s
  X = v.shape[-1]

  def block(carry, row, column, visible):
    def compute(peak_BNT, total_BNT, out_BNTX):
      q_t = _cut(q, row * t, t)
      k_s = _cut(k, column * s, s)
      v_s = _cut(v, column * s, s)
      logits, _, allowed = grid.logits(q_t, k_s, schemes, mask, device_slice, row, column)
      if allowed is not None:
        logits = jnp.where(allowed, logits, MASKED_LOGIT)
      new_peak_BNT = jnp.maximum(peak_BNT, logits.max(-1))
      shrink_BNT = jnp.exp(peak_BNT - new_peak_BNT)
      weights = jnp.exp(logits - new_peak_BNT[..., None])
      if allowed is not None:
        weights = jnp.where(allowed, weights, 0.0)
      total_BNT = total_BNT * shrink_BNT + weights.sum(-1)
      weights = grid.drop(weights, key, device_slice, row, column).astype(v.dtype)
      block_out = jnp.einsum(
        "BKGTS,BSKH->BKGTH", _group_heads(weights, K), v_s, preferred_element_type=jnp.float32
      )
      out_BNTX = out_BNTX * shrink_BNT[..., None] + block_out.reshape(B, N, t, X)
      return new_peak_BNT, total_BNT, out_BNTX

    pieces = tuple(_cut(x, row * t, t, axis=2) for x in carry)
    pieces = _compute_if(visible, compute, *pieces)
    return tuple(_put(x, piece, row * t, 2) for x, piece in zip(carry, pieces, strict=True))

  if sinks_N is None:
    peak = jnp.full((B, N, T), MASKED_LOGIT, jnp.float32)
    total = jnp.zeros((B, N, T), jnp.float32)
  else:
    peak = jnp.broadcast_to(sinks_N.astype(jnp.float32)[:, None], (B, N, T))
    total = jnp.ones((B, N, T), jnp.float32)
  out = jnp.zeros((B, N, T, X), jnp.float32)
  peak, total, out = grid.loop(block, (peak, total, out), mask)
  total = jnp.where(total > 0, total, 1.0)
  out_BTNX = jnp.moveaxis(out / total[..., None], 2, 1)
  return out_BTNX.reshape(*q.shape[:-1], X), peak + jnp.log(total)


def _attend_forward(grid: BlockGrid, q, k, v, schemes, mask, key, device_slice, sinks_N):
  out, log_sum = forward(grid, q, k, v, schemes, mask, key, device_slice, sinks_N)
  out = out.astype(q.dtype)
  log_sum = name_activation(log_sum, "context")
  named_out = name_activation(out, "context")
  return out, ((q, k, v, schemes, mask, key, device_slice, named_out, log_sum), sinks_N)


def _attend_backward(grid: BlockGrid, residuals, d_out):
  pass_residuals, sinks_N = residuals
  gradients = backward(grid, pass_residuals, d_out)
  gradients = jax.tree.map(lambda d, x: d.astype(x.dtype), gradients, pass_residuals[:4])
  if sinks_N is None:
    return *gradients, None, None, None, None
  *_, out, log_sum_BNT = pass_residuals
  inner_BNT = _inner_products(d_out, out)
  d_sinks_N = -jnp.sum(jnp.exp(sinks_N[:, None] - log_sum_BNT) * inner_BNT, axis=(0, 2))
  return *gradients, None, None, None, d_sinks_N.astype(sinks_N.dtype)


def _inner_products(d_out: jax.Array, out: jax.Array) -> jax.Array:
  """Return the products of results and their gradients, float32 [B, N, T].

  The gradient of a softmax subtracts them (Dao et al., appendix B).
  """
  B, T, K, G, _ = out.shape
  inner_BKGT = jnp.einsum("BTKGH,BTKGH->BKGT", d_out, out, preferred_element_type=jnp.float32)
  return inner_BKGT.reshape(B, K * G, T)


def backward(grid: BlockGrid, residuals: tuple, d_out: jax.Array) -> tuple:
  """Return the gradients of (q, k, v, schemes), in float32.

  Args:
    residuals: the arguments of `forward`, its result and its log-sums. The last two may cover more
      keys than `k`; the gradients of `q` and the schemes are then the contributions of the keys in
      `k`.
  """
  q, k, v, schemes, _, _, _, out, _ = residuals
  d_out = d_out.astype(v.dtype)
  inner_BNT = _inner_products(d_out, out)
  t = grid.t
  s = grid.s

  def block(carry, row, column, visible):
    dq, dk, dv, d_schemes = carry
    compute = partial(_block_gradients, grid, residuals, d_out, inner_BNT, row, column)
    dq_t, dk_s, dv_s, d_schemes = _compute_if(
      visible,
      compute,
      _cut(dq, row * t, t),
      _cut(dk, column * s, s),
      _cut(dv, column * s, s),
      d_schemes,
    )
    dq = _put(dq, dq_t, row * t, 1)
    dk = _put(dk, dk_s, column * s, 1)
    dv = _put(dv, dv_s, column * s, 1)
    return dq, dk, dv, d_schemes

  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), (q, k, v, schemes))
  return grid.loop(block, zeros, residuals[4])


def _block_gradients(
  grid: BlockGrid,
  residuals: tuple,
  d_out: jax.Array,
  inner_BNT: jax.Array,
  row,
  column,
  dq_t: jax.Array,
  dk_s: jax.Array,
  dv_s: jax.Array,
  d_schemes,
):
  """Add one block's gradients to the sums for its queries, its keys, their values and schemes."""
  q, k, v, schemes, mask, key, device_slice, _, log_sum_BNT = residuals
  K = k.shape[2]
  t = grid.t
  s = grid.s
  q_t = _cut(q, row * t, t)
  k_s = _cut(k, column * s, s)
  v_s = _cut(v, column * s, s)
  d_out_t = _cut(d_out, row * t, t)
  logits, capped_logits, allowed = grid.logits(q_t, k_s, schemes, mask, device_slice, row, column)
  weights = jnp.exp(logits - _cut(log_sum_BNT, row * t, t, axis=2)[..., None])
  if allowed is not None:
    weights = jnp.where(allowed, weights, 0.0)
  dropped_weights = grid.drop(weights, key, device_slice, row, column).astype(v.dtype)
  dv_s = dv_s + jnp.einsum(
    "BKGTS,BTKGH->BSKH",
    _group_heads(dropped_weights, K),
    d_out_t,
    preferred_element_type=jnp.float32,
  )
  d_weights = jnp.einsum("BTKGH,BSKH->BKGTS", d_out_t, v_s, preferred_element_type=jnp.float32)
  d_weights = grid.drop(d_weights.reshape(weights.shape), key, device_slice, row, column)
  d_logits = weights * (d_weights - _cut(inner_BNT, row * t, t, axis=2)[..., None])
  if schemes:
    bias, pull_back = jax.vjp(
      lambda schemes: grid.bias(schemes, mask, device_slice, row, column), schemes
    )
    # the axes, of batch and heads, along which the bias is broadcast
    shared_axes = tuple(i for i in (0, 1) if bias.shape[i] != d_logits.shape[i])
    (block_d_schemes,) = pull_back(d_logits.sum(shared_axes, keepdims=True))
    d_schemes = jax.tree.map(jnp.add, d_schemes, block_d_schemes)
  if grid.softcap is not None:
    d_logits = d_logits * (1 - (capped_logits / grid.softcap) ** 2)
  d_logits = _group_heads(d_logits.astype(q.dtype), K)
  dq_t = dq_t + jnp.einsum("BKGTS,BSKH->BTKGH", d_logits, k_s, preferred_element_type=jnp.float32)
  dk_s = dk_s + jnp.einsum("BKGTS,BTKGH->BSKH", d_logits, q_t, preferred_element_type=jnp.float32)
  return dq_t, dk_s, dv_s, d_schemes


attend.defvjp(_attend_forward, _attend_backward)
