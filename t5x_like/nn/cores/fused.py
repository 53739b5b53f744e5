"""Attention within a TPU core's memory: a Pallas kernel that holds whole rows of logits, for short
sequences.

One step of the kernel computes the logits [T, S] of some heads, their softmax and its product with
the values; no logit reaches the HBM. The backward pass computes them again and takes the gradients
of queries, keys, values and bias in the same step, so that it keeps only the kernel's inputs. Heads
stay beside one another in [B, T, N * H], as projections write and read them: heads narrower than
128 need neither padding nor transposition.

Dropout is drawn within the kernel, by `dims.hash_bits` from the row, the head and the place in the
logits, so that it depends neither on the mesh nor on the blocks. Other cores draw other masks of
the same distribution.

On other platforms, it runs in Pallas' interpreter: correct, but slow.

Cost: 4 H FLOPs for each logit of a head in the forward pass, 2.5 times as many in the backward
  pass. Memory: O(T + S), and a byte for each pair of tokens that a mask tells apart.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from t5x_like.nn.cores._devices import PerDevice
from t5x_like.nn.cores.dense import MASKED_LOGIT
from t5x_like.nn.dims import Dropout, hash_bits
from t5x_like.parallel.constrain import current, platform

LANES = 128  # a TPU's vector registers are this wide
# queries; logits of a head, of which a step holds several float32 arrays
MIN_QUERIES = 16
MAX_LOGITS = 2**20
_LOGITS = 2**18  # of a step; fewer would not outweigh its start
_MEMORY = 96 * 2**20  # bytes that a step may take
# chips, and the bytes of their cores' memory; others have more
_OLD = ("TPU v2", "TPU v3", "TPU v4")
_LITTLE = 2**24


class Fused(PerDevice):
  """Equal to the dense core, for every mask, bias and dropout, up to `MAX_LOGITS` logits a head."""

  refuses = ("query_bias", "softcap")
  exact = True

  @classmethod
  def unsupported(cls, q, k, mask, softmax):
    (_, T, N, H), S = q.shape, k.shape[1]
    if words := super().unsupported(q, k, mask, softmax):
      return words
    most = MAX_LOGITS // (
      _together(N, [H]) if softmax.bias is not None or softmax.position.biased else 1
    )
    if T < MIN_QUERIES or T * S > most:
      return f"{T} queries and {S} keys, expected at least {MIN_QUERIES} queries and at most {most} pairs"
    layout = current()
    device = jax.devices()[0] if layout is None else layout.mesh.devices.flat[0]
    biased = softmax.bias is not None or softmax.position.biased
    if device.device_kind.startswith(_OLD) and (needs := _bytes(q, S, biased)) > _LITTLE:
      return (
        f"{T} queries and {S} keys, whose step takes {needs / 2**20:.0f} of the 16 MiB of a "
        f"{device.device_kind}"
      )
    return None

  def attend(self, q, k, v, mask, softmax):
    (B, T, N, _), places = q.shape, softmax.device_slice
    k, v = (jnp.repeat(x, N // x.shape[2], axis=2) for x in (k, v))
    more = {}
    if (allowed := mask.dense()) is not None:
      more["allowed"] = allowed[:, 0].astype(jnp.int8)
    if (bias := softmax.total_bias(mask.q_pos, mask.k_pos)) is not None:
      # its gradient is summed over rows
      more["bias"] = places.select_heads(bias, 1).astype(jnp.float32)
    if softmax.key is not None and softmax.dropout.rate > 0:
      part = [] if places.has_all_queries else [places.queries[:1] // T]
      more["drawn"] = jnp.concatenate([draw_seeds(softmax.key), places.rows, places.heads, *part])[
        None
      ]
    out = _attend((N, softmax.dropout), *(x.reshape(*x.shape[:2], -1) for x in (q, k, v)), more)
    return out.reshape(B, T, N, -1)


def draw_seeds(key: jax.Array) -> jax.Array:
  """Return the two int32 numbers from which dropout is drawn."""
  return jax.random.bits(key, (2,)).astype(jnp.int32)


def dropout_mask(drops: Dropout, seeds, T: int, S: int, row, head, part=0) -> jax.Array:
  """Draw the weights of one head that stay: bool [T, S], or [1, S] if all queries drop the same
  keys.

  Two weights share 32 random bits.

  Args:
    seeds: two int32 numbers; `row`, `head` and `part` are int32 too.
    part: the number of these T queries among the parts of a sequence that devices share.
  """
  queries, part = (1, 0) if -2 in drops.shared else (T, part)
  bits = hash_bits(seeds, [row, head], (queries, -(-S // 2)), part)
  halves = jnp.concatenate([bits & 0xFFFF, jax.lax.shift_right_logical(bits, 16)], axis=1)
  return halves[:, :S] >= round(drops.rate * 2**16)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(static: tuple[int, Dropout], q_BTX, k_BSX, v_BSX, more: dict) -> jax.Array:
  """Attend with heads side by side.

  Args:
    static: the number of heads, and the dropout.
    more: `bias` float32 [B or 1, N, T, S], `allowed` int8 [B or 1, T or 1, S] and `drawn` int32 [1,
      2 + B + N (+ 1)], the seeds, ids and part of dropout, or some of them. (A TPU's blocks have
      two axes, besides mapped ones.)
  """
  shape = jax.ShapeDtypeStruct((*q_BTX.shape[:2], v_BSX.shape[-1]), q_BTX.dtype)
  return _call(_forward, static, dict(q=q_BTX, k=k_BSX, v=v_BSX), more, dict(out=shape), 2)["out"]


def _backward_pass(static, inputs, d_out):
  q, k, v, more = inputs
  arrays = dict(q=q, k=k, v=v, d_out=d_out.astype(q.dtype))
  shapes = dict(dq=q, dk=k, dv=v) | ({"d_bias": more["bias"]} if "bias" in more else {})
  found = _call(_backward, static, arrays, more, shapes, 5)
  return found["dq"], found["dk"], found["dv"], {name: found.get(f"d_{name}") for name in more}


_attend.defvjp(lambda static, *inputs: (_attend(static, *inputs), inputs), _backward_pass)


def _together(heads: int, widths: list[int]) -> int:
  """Return the number of heads in a step: the fewest whose columns fill whole registers, or all."""
  return next(
    (n for n in range(1, heads) if heads % n == 0 and all(n * w % LANES == 0 for w in widths)),
    heads,
  )


def _bytes(q: jax.Array, S: int, biased: bool) -> int:
  """Estimate the memory of a step of the backward pass: five arrays of logits, and twice each block
  that comes or goes, of which the next or the last is on its way."""
  B, T, N, H = q.shape
  n = _together(N, [H])
  rows = max(1, min(B, _LOGITS // (n * T * S)))
  blocks = rows * n * (H * (3 * T + 4 * S) * q.dtype.itemsize + 2 * biased * 4 * T * S)
  return 5 * 4 * T * S + 2 * (blocks + T * S)


def _call(kernel, static, arrays: dict, more: dict, out_shapes: dict, products: int) -> dict:
  """Run a kernel over the blocks of heads and, for each of them, of rows.

  Args:
    arrays: [B, T or S, heads * width] each.
    products: number of matrix products of the kernel for each logit.
  """
  from jax.experimental.pallas import tpu

  heads, drops = static
  (B, T, _), S, given = arrays["q"].shape, arrays["k"].shape[1], arrays | more
  widths = [x.shape[-1] // heads for x in arrays.values()]
  n = _together(heads, widths)
  rows = max(r for r in range(1, B + 1) if B % r == 0 and (r == 1 or r * n * T * S <= _LOGITS))
  drawn = given["drawn"].shape[1] - 2 if "drawn" in given else 0

  def spec(name, x):
    if name == "drawn":
      return pl.BlockSpec(memory_space=tpu.SMEM)
    if name in arrays or name in ("dq", "dk", "dv", "out"):
      return pl.BlockSpec((rows, x.shape[1], x.shape[2] // heads * n), lambda h, b: (b, 0, h))
    of_row = (lambda b: b) if x.shape[0] > 1 else (lambda b: 0)
    block = (min(rows, x.shape[0]), *((n,) if x.ndim == 4 else ()), *x.shape[-2:])
    return pl.BlockSpec(block, lambda h, b: (of_row(b), *((h,) if x.ndim == 4 else ()), 0, 0))

  def run(*refs):
    refs = dict(zip([*given, *out_shapes], refs, strict=True))
    block = pl.program_id(0)
    step = pl.program_id(1)
    if "d_bias" in refs:

      @pl.when((step == 0) | (out_shapes["d_bias"].shape[0] > 1))
      def _():
        refs["d_bias"][...] = jnp.zeros_like(refs["d_bias"])

    def row(r, carry):
      for h in range(n):
        places = (step * rows + r, B + block * n + h, *range(B + heads, drawn))
        kernel(_Head(refs, n, drops, [refs["drawn"][0, 2 + i] for i in places if drawn], r, h))
      return carry

    jax.lax.fori_loop(0, rows, row, 0)

  columns, width = (-(-size // LANES) * LANES for size in (S, max(widths)))
  flops = 2 * products * B * heads * T * columns * width
  found = pl.pallas_call(
    run,
    grid=(heads // n, B // rows),
    in_specs=[spec(*item) for item in given.items()],
    out_specs=[spec(*item) for item in out_shapes.items()],
    out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in out_shapes.values()],
    compiler_params=tpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=_MEMORY
    ),
    cost_estimate=pl.CostEstimate(flops=flops, transcendentals=B * heads * T * S, bytes_accessed=0),
    interpret=platform() != "tpu",
    name=f"fused{kernel.__name__}",
  )(*given.values())
  return dict(zip(out_shapes, found, strict=True))


class _Head:
  """A head of a row in a step: the places of both within the blocks, and the ids for dropout.

  Attributes:
    refs: the blocks, [rows, T or S, n * width]; of `bias` and `d_bias` [rows or 1, n, T, S], of
      `allowed` [rows or 1, T or 1, S].
  """

  def __init__(self, refs: dict, n: int, drops: Dropout, ids: tuple, r, h: int):
    self.refs = refs
    self.n = n
    self.drops = drops
    self.ids = ids
    self.r = r
    self.h = h

  def at(self, name: str) -> tuple:
    ref = self.refs[name]
    row = self.r if ref.shape[0] > 1 else 0
    if name in ("bias", "d_bias"):
      return row, self.h
    width = ref.shape[-1] // self.n
    return (
      (row,)
      if name == "allowed"
      else (row, slice(None), slice(self.h * width, (self.h + 1) * width))
    )

  def __getitem__(self, name: str) -> jax.Array:
    return self.refs[name][self.at(name)]

  def __setitem__(self, name: str, value: jax.Array) -> None:
    self.refs[name][self.at(name)] = value.astype(self.refs[name].dtype)

  def masked(self, logits: jax.Array, otherwise: float) -> jax.Array:
    return (
      jnp.where(self["allowed"].astype(jnp.int32) != 0, logits, otherwise)
      if "allowed" in self.refs
      else logits
    )

  def powers(self) -> tuple[jax.Array, jax.Array]:
    """Return exp(logit - maximum) and the inverse of its sums over the keys, float32 [T, S] and [T,
    1]."""
    logits = matmul_float32(self["q"], self["k"], 1, 1)
    if "bias" in self.refs:
      logits += self["bias"]
    logits = self.masked(logits, MASKED_LOGIT)
    powers = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    return powers, 1.0 / jnp.sum(powers, axis=-1, keepdims=True)

  def dropped(self, weights: jax.Array) -> jax.Array:
    """Zero the weights that dropout drops and rescale the others."""
    if "drawn" not in self.refs:
      return weights
    keep = dropout_mask(
      self.drops, [self.refs["drawn"][0, i] for i in range(2)], *weights.shape, *self.ids
    )
    rescaled = 2**16 / (2**16 - round(self.drops.rate * 2**16))
    return weights * jnp.where(keep, rescaled, 0.0)


def matmul_float32(a: jax.Array, b: jax.Array, a_axis: int, b_axis: int) -> jax.Array:
  """Multiply two matrices over an axis of each; return float32."""
  return jax.lax.dot_general(
    a, b, (((a_axis,), (b_axis,)), ((), ())), preferred_element_type=jnp.float32
  )


def _forward(head: _Head) -> None:
  powers, inverse = head.powers()
  head["out"] = (
    matmul_float32(head.dropped(powers).astype(head["v"].dtype), head["v"], 1, 0) * inverse
  )


def _backward(head: _Head) -> None:
  powers, inverse = head.powers()
  weights = powers * inverse
  d_out = head["d_out"]
  d_weights = head.dropped(matmul_float32(d_out, head["v"], 1, 1))
  d_logits = weights * (d_weights - jnp.sum(weights * d_weights, axis=-1, keepdims=True))
  d_logits = head.masked(d_logits, 0.0)
  if "d_bias" in head.refs:
    head["d_bias"] += d_logits
  d_logits = d_logits.astype(d_out.dtype)
  head["dq"] = matmul_float32(d_logits, head["k"], 1, 0)
  head["dk"] = matmul_float32(d_logits, head["q"], 0, 0)
  head["dv"] = matmul_float32(head.dropped(weights).astype(d_out.dtype), d_out, 0, 0)


make = Fused
