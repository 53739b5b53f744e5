"""Attention among few tokens within a TPU core's memory, by a Pallas kernel for many sequences.

Up to 64 keys fill half of a register's 128 lanes, so that two heads share each row of logits, and
narrow heads share each row of queries. Keys and values form a block-diagonal matrix, with a row for
each key of each head and zeros in other heads' lanes. One product of full size gives the logits of
all heads in a register, and another one their results. No logit reaches the HBM, and the backward
pass computes the logits again.

As in `fused`, heads stay adjacent. Sequences, such as windows, are adjacent too, in [T, B, N * H],
which a TPU does not pad for any T. XLA chooses this order itself for projections, norms and
residuals. The kernel transposes each block in the core's memory.

On other platforms, it runs in Pallas' interpreter: correct, but slow.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from t5x_like.nn.cores._blocks import pad_to
from t5x_like.nn.cores._devices import PerDevice
from t5x_like.nn.cores.dense import MASKED_LOGIT
from t5x_like.nn.cores.fused import LANES, matmul_float32
from t5x_like.parallel.constrain import platform, ways

MAX_KEYS = 64  # lanes of a head, half of a register
MIN_TOKENS = 16
HEAD_WIDTHS = (8, 16, 32, 64)
# Logits of the keys that pad a head's lanes: below MASKED_LOGIT, so that rows without any allowed
# key have equal weights on real keys.
_PADDING_LOGIT = -1e30
_TILE = 8  # sequences
_ROWS = 32  # sequences of a step of LANES columns
_INTERLEAVED = 2  # sequences whose instructions overlap
_MAX_STEP_BYTES = 64 * 2**20
# Cost of a head in products of 64 x 128 x 128: the number that takes as long, at the share of the
# peak rate that plans assume, as the compiler's schedule of the head.
_FORWARD_COST = 4
_BACKWARD_COST = 8


class Short(PerDevice):
  """Equal to the dense core for self-attention among up to 64 tokens.

  A bias must be the same for all sequences.
  """

  refuses = ("query_bias", "softcap", "dropout", "lengths")
  exact = True

  @classmethod
  def unsupported(cls, q, k, mask, softmax):
    feature = super().unsupported(q, k, mask, softmax)
    if feature:
      return feature
    _, T, _, H = q.shape
    if not MIN_TOKENS <= T <= MAX_KEYS:
      return f"{T} tokens, expected {MIN_TOKENS} to {MAX_KEYS}"
    length_ways = ways("length")
    if length_ways > 1 and T % length_ways == 0:
      return f"queries that {length_ways} devices share"
    if H not in HEAD_WIDTHS:
      return f"heads of width {H}, expected one of {HEAD_WIDTHS}"
    bias_rows = max(len(mask.q_pos), getattr(softmax.bias, "shape", (1,))[0])
    if softmax.has_bias and bias_rows > 1:
      return "a bias for each sequence, expected the same for all"
    return None

  def attend(self, q, k, v, mask, softmax):
    B, T, N, H = q.shape
    value_width = v.shape[-1]
    k = jnp.repeat(pad_to(k, H, 3), N // k.shape[2], axis=2)
    v = jnp.repeat(pad_to(v, H, 3), N // v.shape[2], axis=2)
    bias = softmax.total_bias(mask.q_pos, mask.k_pos)
    if bias is None:
      bias_NTT = jnp.zeros((N, T, T), jnp.float32)
    else:
      bias_NTT = softmax.device_slice.select_heads(bias, 1)[0]
    extras = {"bias": _pair_heads(bias_NTT.astype(jnp.float32))}
    allowed = mask.dense()
    padding = -B % _TILE
    if allowed is not None:
      extras["allowed"] = _pad_mask(allowed[:, 0], T, padding)

    def tokens_first(x_BTNH):
      x_BTX = x_BTNH.reshape(B, T, -1)
      return jnp.pad(x_BTX, ((0, padding), (0, 0), (0, 0))).swapaxes(0, 1)

    out_TBX = _attend(N, tokens_first(q), tokens_first(k), tokens_first(v), extras)
    return out_TBX.swapaxes(0, 1)[:B].reshape(B, T, N, H)[..., :value_width]


def _pair_heads(bias_NTS: jax.Array) -> jax.Array:
  """Put the biases of two heads into each register's row: [ceil(N / 2), padded T, 128].

  Each is padded to 64 keys.
  """
  N, T, S = bias_NTS.shape
  rows = _pad_rows(T)
  bias = jnp.pad(bias_NTS, ((0, 0), (0, 0), (0, MAX_KEYS - S)), constant_values=_PADDING_LOGIT)
  bias = jnp.pad(bias, ((0, N % 2), (0, rows - T), (0, 0)))
  return bias.reshape(-1, 2, rows, MAX_KEYS).transpose(0, 2, 1, 3).reshape(-1, rows, LANES)


def _pad_mask(allowed_BTS: jax.Array, T: int, padding: int) -> jax.Array:
  """Return the mask for both heads of a pair, int8 [1 or B + padding, padded T, 128]."""
  B = len(allowed_BTS)
  allowed = jnp.broadcast_to(allowed_BTS, (B, T, T))
  widths = ((0, padding if B > 1 else 0), (0, _pad_rows(T) - T), (0, MAX_KEYS - T))
  allowed = jnp.pad(allowed, widths, constant_values=True).astype(jnp.int8)
  return jnp.concatenate([allowed, allowed], axis=2)


def _pad_rows(T: int) -> int:
  """Round a number of tokens up to whole tiles of 8 rows."""
  return -(-T // 8) * 8


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(heads: int, q_TBX, k_TBX, v_TBX, extras: dict) -> jax.Array:
  """Attend with heads adjacent in the last axis.

  Args:
    extras: `bias` float32 [pairs of heads, padded T, 128], see `_pair_heads`, and maybe `allowed`
      int8 [B or 1, padded T, 128], the same for both heads of a pair.
  """
  arrays = dict(q=q_TBX, k=k_TBX, v=v_TBX)
  return _run_kernel(_forward, heads, arrays, extras, dict(out=q_TBX), _FORWARD_COST)["out"]


def _attend_forward(heads, q, k, v, extras):
  return _attend(heads, q, k, v, extras), (q, k, v, extras)


def _attend_backward(heads, inputs, d_out):
  q, k, v, extras = inputs
  arrays = dict(q=q, k=k, v=v, d_out=d_out.astype(q.dtype))
  out_shapes = dict(dq=q, dk=k, dv=v, d_bias=extras["bias"])
  gradients = _run_kernel(_backward, heads, arrays, extras, out_shapes, _BACKWARD_COST)
  d_extras = {name: gradients.get(f"d_{name}") for name in extras}
  return gradients["dq"], gradients["dk"], gradients["dv"], d_extras


_attend.defvjp(_attend_forward, _attend_backward)


def _heads_per_step(heads: int, width: int) -> int:
  """Return the number of heads in a step: the fewest that fill whole registers, or all."""
  for n in range(2, heads):
    if heads % n == 0 and n * width % LANES == 0:
      return n
  return heads


def _rows_per_step(B: int, columns: int) -> int:
  """Return the number of sequences in a step with this number of columns."""
  for rows in (_ROWS, _ROWS // 2):
    if B % rows == 0 and rows * columns <= _ROWS * LANES:
      return rows
  return _TILE


def _block_spec(name: str, x, n: int, rows: int, H: int) -> pl.BlockSpec:
  """Return an array's block in a step of `n` heads and `rows` sequences; the grid is (h, b)."""
  if "bias" in name:
    return pl.BlockSpec((-(-n // 2), *x.shape[1:]), lambda h, b: (h, 0, 0))
  if name == "allowed":
    shared = x.shape[0] == 1
    block = (min(rows, x.shape[0]), *x.shape[1:])
    return pl.BlockSpec(block, lambda h, b: (0 if shared else b, 0, 0))
  return pl.BlockSpec((x.shape[0], rows, n * H), lambda h, b: (0, b, h))


def _run_kernel(
  kernel, heads: int, arrays: dict, extras: dict, out_shapes: dict, cost: int
) -> dict:
  """Run a kernel over blocks of heads and, for each of them, over blocks of sequences.

  Args:
    arrays: [T, B, heads * width] each, so that a TPU neither pads nor transposes them.
    cost: products of 64 x 128 x 128 for each head.
  """
  from jax.experimental.pallas import tpu

  T, B, X = arrays["q"].shape
  H = X // heads
  inputs = arrays | extras
  n = _heads_per_step(heads, H)
  rows = _rows_per_step(B, n * H)

  # Blocks of tokens, of which the kernel holds a transposed copy.
  outputs = {name: x for name, x in out_shapes.items() if name != "d_bias"}
  transposed = arrays | outputs

  def run(*refs):
    count = len(inputs) + len(out_shapes)
    blocks = dict(zip([*inputs, *out_shapes], refs[:count]))
    copies = dict(zip(transposed, refs[count:], strict=True))
    for name in arrays:
      copies[name][...] = jnp.swapaxes(_pad_tokens(blocks[name][...]), 0, 1)
    if "d_bias" in blocks:

      @pl.when(pl.program_id(1) == 0)
      def _():
        blocks["d_bias"][...] = jnp.zeros_like(blocks["d_bias"])

    def step(i, carry):
      for first in range(0, n * H, LANES):
        group = _Group(blocks | copies, T, H, slice(first, min(first + LANES, n * H)))
        kernel(group, [i * _INTERLEAVED + r for r in range(_INTERLEAVED)])
      return carry

    jax.lax.fori_loop(0, rows // _INTERLEAVED, step, 0)
    for name in outputs:
      blocks[name][...] = jnp.swapaxes(copies[name][...], 0, 1)[:T]

  flops = 2 * cost * B * heads * MAX_KEYS * LANES * LANES
  results = pl.pallas_call(
    run,
    grid=(heads // n, B // rows),
    in_specs=[_block_spec(name, x, n, rows, H) for name, x in inputs.items()],
    out_specs=[_block_spec(name, x, n, rows, H) for name, x in out_shapes.items()],
    out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in out_shapes.values()],
    scratch_shapes=[tpu.VMEM((rows, MAX_KEYS, n * H), x.dtype) for x in transposed.values()],
    compiler_params=tpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=_MAX_STEP_BYTES
    ),
    cost_estimate=pl.CostEstimate(
      flops=flops, transcendentals=B * heads * T * MAX_KEYS, bytes_accessed=0
    ),
    interpret=platform() != "tpu",
    name=f"short{kernel.__name__}",
  )(*inputs.values())
  return dict(zip(out_shapes, results, strict=True))


def _pad_tokens(x_TBX: jax.Array) -> jax.Array:
  """Pad the tokens of a block with zeros to 64."""
  T = x_TBX.shape[0]
  if T == MAX_KEYS:
    return x_TBX
  return jnp.concatenate([x_TBX, jnp.zeros((MAX_KEYS - T, *x_TBX.shape[1:]), x_TBX.dtype)])


class _Group:
  """The heads that share a register of queries: `lanes` of the blocks.

  Logits of a sequence are float32 [padded T, 64 for each head].

  Attributes:
    refs: the blocks by name.
    T: padded number of tokens.
    pairs, first: number of pairs of heads, and the first pair within the block.
    head_lanes: for each head, bool [64, width], True in its own lanes.
  """

  def __init__(self, refs: dict, T: int, H: int, lanes: slice):
    self.refs = refs
    self.lanes = lanes
    self.T = _pad_rows(T)
    self.width = lanes.stop - lanes.start
    self.pairs = -(-self.width // H // 2)
    self.first = lanes.start // H // 2
    lane = jax.lax.broadcasted_iota(jnp.int32, (MAX_KEYS, self.width), 1)
    self.head_lanes = [(lane >= h * H) & (lane < h * H + H) for h in range(2 * self.pairs)]

  def tokens(self, name: str, r) -> jax.Array:
    """Read queries, or gradients of results: [64, width]."""
    return self.refs[name][r, :, self.lanes]

  def diagonal(self, name: str, r) -> jax.Array:
    """Read keys or values: [64 for each head, width], zeros in other heads' lanes."""
    x = self.refs[name][r, :, self.lanes]
    return jnp.concatenate([jnp.where(lanes, x, jnp.zeros_like(x)) for lanes in self.head_lanes])

  def off_diagonal(self, x: jax.Array) -> jax.Array:
    """Undo `diagonal`: [64 for each head, width] -> [64, width]."""
    total = 0
    for h, lanes in enumerate(self.head_lanes):
      total = total + jnp.where(lanes, x[h * MAX_KEYS : (h + 1) * MAX_KEYS], 0.0)
    return total

  def apply_mask(self, r, x: jax.Array, masked_logit: float) -> jax.Array:
    if "allowed" not in self.refs:
      return x
    ref = self.refs["allowed"]
    allowed = ref[r if ref.shape[0] > 1 else 0].astype(jnp.int32)
    allowed = jnp.concatenate([allowed] * self.pairs, axis=1)
    return jnp.where(allowed != 0, x, masked_logit)

  def powers(self, r, q: jax.Array, keys: jax.Array) -> jax.Array:
    """Return exp(logit - its head's maximum)."""
    bias = [self.refs["bias"][self.first + pair] for pair in range(self.pairs)]
    logits = matmul_float32(q, keys, 1, 1)[: self.T] + jnp.concatenate(bias, axis=1)
    logits = self.apply_mask(r, logits, MASKED_LOGIT)
    return jnp.exp(logits - self.reduce_heads(jnp.max, logits, 2 * _PADDING_LOGIT))

  def reduce_heads(self, reduce, x: jax.Array, neutral: float) -> jax.Array:
    """Reduce over the keys of each head, and broadcast the result to them."""
    reduced = []
    for pair in range(self.pairs):
      logits = x[:, pair * LANES : (pair + 1) * LANES]
      is_first = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1) < MAX_KEYS
      first = reduce(jnp.where(is_first, logits, neutral), axis=1, keepdims=True)
      second = reduce(jnp.where(~is_first, logits, neutral), axis=1, keepdims=True)
      reduced.append(jnp.where(is_first, first, second))
    return jnp.concatenate(reduced, axis=1)


# The names of the next two functions are part of the kernels' names in profiles.
def _forward(group: _Group, rows: list) -> None:
  dtype = group.refs["q"].dtype
  ones = jnp.concatenate([lanes.astype(jnp.float32).astype(dtype) for lanes in group.head_lanes])
  for r in rows:
    powers = group.powers(r, group.tokens("q", r), group.diagonal("k", r)).astype(dtype)
    sums = matmul_float32(powers, ones, 1, 0)
    out = matmul_float32(powers, group.diagonal("v", r), 1, 0) / sums
    group.refs["out"][r, : group.T, group.lanes] = out.astype(dtype)


def _backward(group: _Group, rows: list) -> None:
  refs = group.refs
  dtype = group.refs["q"].dtype
  d_bias = 0.0
  for r in rows:
    q = group.tokens("q", r)
    d_out = group.tokens("d_out", r)
    keys = group.diagonal("k", r)
    powers = group.powers(r, q, keys)
    d_weights = matmul_float32(d_out, group.diagonal("v", r), 1, 1)[: group.T]
    weights = powers / group.reduce_heads(jnp.sum, powers, 0.0)
    d_logits = weights * (d_weights - group.reduce_heads(jnp.sum, weights * d_weights, 0.0))
    d_logits = group.apply_mask(r, d_logits, 0.0)
    d_bias += d_logits
    padding = ((0, MAX_KEYS - group.T), (0, 0))
    weights = jnp.pad(weights, padding).astype(dtype)
    d_logits = jnp.pad(d_logits, padding).astype(dtype)
    dq = matmul_float32(d_logits, keys, 1, 0)
    dk = group.off_diagonal(matmul_float32(d_logits, q, 0, 0))
    dv = group.off_diagonal(matmul_float32(weights, d_out, 0, 0))
    refs["dq"][r, :, group.lanes] = dq.astype(dtype)
    refs["dk"][r, :, group.lanes] = dk.astype(dtype)
    refs["dv"][r, :, group.lanes] = dv.astype(dtype)
  for pair in range(group.pairs):
    refs["d_bias"][group.first + pair] += d_bias[:, pair * LANES : (pair + 1) * LANES]


make = Short
