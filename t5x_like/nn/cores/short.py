"""Attention among few tokens within a TPU core's memory: a Pallas kernel for many short sequences,
such as windows.

Up to 64 keys fill half of a register's 128 lanes, so that two heads share each row of logits, and
narrow heads share each row of queries. Keys and values stand on the diagonal of a matrix with a row
for each key of each head, and with zeros in other heads' lanes. One product of full size gives the
logits of all heads in a register, and one their results. No logit reaches the HBM, and the backward
pass computes the logits again.

As in `fused`, heads stay beside one another. Sequences lie side by side in [T, B, N * H], which a
TPU need not pad whatever T is. XLA chooses this order itself for projections, norms and residuals.
The kernel turns each block in the core's memory.

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
# tokens; columns of a head
MIN_TOKENS = 16
HEAD_WIDTHS = (8, 16, 32, 64)
# logits of keys that pad a head's lanes; below MASKED_LOGIT, so that rows without any allowed key are
# even
_ABSENT = -1e30
# sequences of a tile, and of a step of LANES columns
_TILE = 8
_ROWS = 32
_TOGETHER = 2  # sequences whose instructions overlap
_MEMORY = 64 * 2**20  # bytes that a step may take
# Products of 64 x 128 x 128 for each head that take as long as the compiler's schedule of it, at
# the share of the peak rate that plans assume.
_FORWARD_COST = 4
_BACKWARD_COST = 8


class Short(PerDevice):
  """Equal to the dense core for self-attention among up to 64 tokens, with the same bias for all
  sequences."""

  refuses = ("query_bias", "softcap", "dropout", "lengths")
  exact = True

  @classmethod
  def unsupported(cls, q, k, mask, softmax):
    _, T, _, H = q.shape
    if words := super().unsupported(q, k, mask, softmax):
      return words
    if not MIN_TOKENS <= T <= MAX_KEYS:
      return f"{T} tokens, expected {MIN_TOKENS} to {MAX_KEYS}"
    if (shared := ways("length")) > 1 and T % shared == 0:
      return f"queries that {shared} devices share"
    if H not in HEAD_WIDTHS:
      return f"heads of width {H}, expected one of {HEAD_WIDTHS}"
    biased = softmax.bias is not None or softmax.position.biased
    if biased and max(len(mask.q_pos), getattr(softmax.bias, "shape", (1,))[0]) > 1:
      return "a bias of each sequence's own, expected the same for all"
    return None

  def attend(self, q, k, v, mask, softmax):
    (B, T, N, H), width = q.shape, v.shape[-1]
    k, v = (jnp.repeat(pad_to(x, H, 3), N // x.shape[2], axis=2) for x in (k, v))
    bias = softmax.total_bias(mask.q_pos, mask.k_pos)
    bias = (
      jnp.zeros((N, T, T), jnp.float32)
      if bias is None
      else softmax.device_slice.select_heads(bias, 1)[0]
    )
    more = -B % _TILE

    def tokens_first(x):
      return jnp.pad(x.reshape(*x.shape[:2], -1), ((0, more), (0, 0), (0, 0))).swapaxes(0, 1)

    allowed = mask.dense()
    given = {"bias": _in_pairs(bias.astype(jnp.float32))}
    if allowed is not None:
      allowed = jnp.broadcast_to(allowed[:, 0], (allowed.shape[0], T, T))
      most = ((0, more if len(allowed) > 1 else 0), (0, _padded(T) - T), (0, MAX_KEYS - T))
      allowed = jnp.pad(allowed, most, constant_values=True).astype(jnp.int8)
      given["allowed"] = jnp.concatenate([allowed, allowed], axis=2)
    out = _attend(N, *map(tokens_first, (q, k, v)), given)
    return out.swapaxes(0, 1)[:B].reshape(B, T, N, H)[..., :width]


def _in_pairs(bias_NTS: jax.Array) -> jax.Array:
  """Put the biases of two heads beside each other, each padded to 64 keys: [ceil(N / 2), padded T,
  128]."""
  N, T, S = bias_NTS.shape
  bias = jnp.pad(bias_NTS, ((0, 0), (0, 0), (0, MAX_KEYS - S)), constant_values=_ABSENT)
  bias = jnp.pad(bias, ((0, N % 2), (0, _padded(T) - T), (0, 0)))
  return (
    bias.reshape(-1, 2, _padded(T), MAX_KEYS).transpose(0, 2, 1, 3).reshape(-1, _padded(T), LANES)
  )


def _padded(T: int) -> int:
  return -(-T // 8) * 8


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(heads: int, q_TBX, k_TBX, v_TBX, more: dict) -> jax.Array:
  """Attend with heads side by side.

  Args:
    more: `bias` float32 [pairs of heads, padded T, 128], see `_in_pairs`, and maybe `allowed` int8
      [B or 1, padded T, 128], the same for both heads of a pair.
  """
  return _call(
    _forward, heads, dict(q=q_TBX, k=k_TBX, v=v_TBX), more, dict(out=q_TBX), _FORWARD_COST
  )["out"]


def _backward_pass(heads, inputs, d_out):
  q, k, v, more = inputs
  arrays = dict(q=q, k=k, v=v, d_out=d_out.astype(q.dtype))
  shapes = dict(dq=q, dk=k, dv=v, d_bias=more["bias"])
  found = _call(_backward, heads, arrays, more, shapes, _BACKWARD_COST)
  return found["dq"], found["dk"], found["dv"], {name: found.get(f"d_{name}") for name in more}


_attend.defvjp(lambda heads, *inputs: (_attend(heads, *inputs), inputs), _backward_pass)


def _together(heads: int, width: int) -> int:
  """Return the number of heads in a step: the fewest that fill whole registers, or all."""
  return next((n for n in range(2, heads) if heads % n == 0 and n * width % LANES == 0), heads)


def _call(kernel, heads: int, arrays: dict, more: dict, shapes: dict, cost: int) -> dict:
  """Run a kernel over blocks of heads and, for each of them, over blocks of sequences.

  Args:
    arrays: [T, B, heads * width] each, so that a TPU neither pads nor transposes them.
  """
  from jax.experimental.pallas import tpu

  T, B, X = arrays["q"].shape
  H = X // heads
  given = arrays | more
  n = _together(heads, H)
  rows = next(
    r for r in (_ROWS, _ROWS // 2, _TILE) if r == _TILE or B % r == 0 and r * n * H <= _ROWS * LANES
  )

  def spec(name, x):
    if "bias" in name:
      return pl.BlockSpec((-(-n // 2), *x.shape[1:]), lambda h, b: (h, 0, 0))
    if name == "allowed":
      return pl.BlockSpec(
        (min(rows, x.shape[0]), *x.shape[1:]), lambda h, b: (b if x.shape[0] > 1 else 0, 0, 0)
      )
    return pl.BlockSpec((T, rows, n * H), lambda h, b: (0, b, h))

  inside = arrays | {name: x for name, x in shapes.items() if name != "d_bias"}

  def run(*refs):
    count = len(given) + len(shapes)
    blocks = dict(zip([*given, *shapes], refs[:count]))
    turned = dict(zip(inside, refs[count:], strict=True))
    for name in arrays:
      x = blocks[name][...]
      x = (
        jnp.concatenate([x, jnp.zeros((MAX_KEYS - T, *x.shape[1:]), x.dtype)])
        if T < MAX_KEYS
        else x
      )
      turned[name][...] = jnp.swapaxes(x, 0, 1)
    if "d_bias" in blocks:

      @pl.when(pl.program_id(1) == 0)
      def _():
        blocks["d_bias"][...] = jnp.zeros_like(blocks["d_bias"])

    def step(i, carry):
      for first in range(0, n * H, LANES):
        group = _Group(blocks | turned, T, H, slice(first, min(first + LANES, n * H)))
        kernel(group, [i * _TOGETHER + r for r in range(_TOGETHER)])
      return carry

    jax.lax.fori_loop(0, rows // _TOGETHER, step, 0)
    for name in [name for name in inside if name not in arrays]:
      blocks[name][...] = jnp.swapaxes(turned[name][...], 0, 1)[:T]

  flops = 2 * cost * B * heads * MAX_KEYS * LANES * LANES
  found = pl.pallas_call(
    run,
    grid=(heads // n, B // rows),
    in_specs=[spec(*item) for item in given.items()],
    out_specs=[spec(*item) for item in shapes.items()],
    out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in shapes.values()],
    scratch_shapes=[tpu.VMEM((rows, MAX_KEYS, n * H), x.dtype) for x in inside.values()],
    compiler_params=tpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=_MEMORY
    ),
    cost_estimate=pl.CostEstimate(
      flops=flops, transcendentals=B * heads * T * MAX_KEYS, bytes_accessed=0
    ),
    interpret=platform() != "tpu",
    name=f"short{kernel.__name__}",
  )(*given.values())
  return dict(zip(shapes, found, strict=True))


class _Group:
  """The heads that share a register of queries: `lanes` of the blocks.

  Logits of a sequence are float32 [padded T, 64 for each head].
  """

  def __init__(self, refs: dict, T: int, H: int, lanes: slice):
    self.refs, self.lanes, self.T = refs, lanes, _padded(T)
    self.width = lanes.stop - lanes.start
    self.pairs = -(-self.width // H // 2)
    self.first = lanes.start // H // 2
    lane = jax.lax.broadcasted_iota(jnp.int32, (MAX_KEYS, self.width), 1)
    self.own = [(lane >= h * H) & (lane < h * H + H) for h in range(2 * self.pairs)]

  def tokens(self, name: str, r) -> jax.Array:
    """Read queries, or gradients of results: [64, width]."""
    return self.refs[name][r, :, self.lanes]

  def diagonal(self, name: str, r) -> jax.Array:
    """Read keys or values: [64 for each head, width], zeros in other heads' lanes."""
    x = self.refs[name][r, :, self.lanes]
    return jnp.concatenate([jnp.where(own, x, jnp.zeros_like(x)) for own in self.own])

  def off_diagonal(self, x: jax.Array) -> jax.Array:
    """Undo `diagonal`: [64 for each head, width] -> [64, width]."""
    return sum(
      jnp.where(own, x[h * MAX_KEYS : (h + 1) * MAX_KEYS], 0.0) for h, own in enumerate(self.own)
    )

  def masked(self, r, x: jax.Array, otherwise: float) -> jax.Array:
    if "allowed" not in self.refs:
      return x
    ref = self.refs["allowed"]
    seen = ref[r if ref.shape[0] > 1 else 0].astype(jnp.int32)
    return jnp.where(jnp.concatenate([seen] * self.pairs, axis=1) != 0, x, otherwise)

  def powers(self, r, q: jax.Array, keys: jax.Array) -> jax.Array:
    """Return exp(logit - its head's maximum)."""
    bias = [self.refs["bias"][self.first + p] for p in range(self.pairs)]
    logits = self.masked(
      r, matmul_float32(q, keys, 1, 1)[: self.T] + jnp.concatenate(bias, axis=1), MASKED_LOGIT
    )
    return jnp.exp(logits - self.of_heads(jnp.max, logits, 2 * _ABSENT))

  def of_heads(self, reduce, x: jax.Array, neutral: float) -> jax.Array:
    """Reduce over the keys of each head, and give the result to each of its keys."""
    found = []
    for p in range(self.pairs):
      pair = x[:, p * LANES : (p + 1) * LANES]
      left = jax.lax.broadcasted_iota(jnp.int32, pair.shape, 1) < MAX_KEYS
      halves = [
        reduce(jnp.where(half, pair, neutral), axis=1, keepdims=True) for half in (left, ~left)
      ]
      found.append(jnp.where(left, *halves))
    return jnp.concatenate(found, axis=1)


def _forward(group: _Group, rows: list) -> None:
  dtype = group.refs["q"].dtype
  ones = jnp.concatenate([own.astype(jnp.float32).astype(dtype) for own in group.own])
  for r in rows:
    powers = group.powers(r, group.tokens("q", r), group.diagonal("k", r)).astype(dtype)
    out = matmul_float32(powers, group.diagonal("v", r), 1, 0) / matmul_float32(powers, ones, 1, 0)
    group.refs["out"][r, : group.T, group.lanes] = out.astype(dtype)


def _backward(group: _Group, rows: list) -> None:
  refs = group.refs
  dtype = group.refs["q"].dtype
  total = 0.0
  for r in rows:
    q = group.tokens("q", r)
    d_out = group.tokens("d_out", r)
    keys = group.diagonal("k", r)
    powers = group.powers(r, q, keys)
    d_weights = matmul_float32(d_out, group.diagonal("v", r), 1, 1)[: group.T]
    weights = powers / group.of_heads(jnp.sum, powers, 0.0)
    d_logits = weights * (d_weights - group.of_heads(jnp.sum, weights * d_weights, 0.0))
    d_logits = group.masked(r, d_logits, 0.0)
    total += d_logits
    weights, d_logits = (
      jnp.pad(x, ((0, MAX_KEYS - group.T), (0, 0))).astype(dtype) for x in (weights, d_logits)
    )
    refs["dq"][r, :, group.lanes] = matmul_float32(d_logits, keys, 1, 0).astype(dtype)
    refs["dk"][r, :, group.lanes] = group.off_diagonal(matmul_float32(d_logits, q, 0, 0)).astype(
      dtype
    )
    refs["dv"][r, :, group.lanes] = group.off_diagonal(matmul_float32(weights, d_out, 0, 0)).astype(
      dtype
    )
  for p in range(group.pairs):
    refs["d_bias"][group.first + p] += total[:, p * LANES : (p + 1) * LANES]


make = Short
