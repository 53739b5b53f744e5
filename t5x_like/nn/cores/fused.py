"""Attention to short sequences within a TPU core's memory, by a Pallas kernel.

The kernel holds whole rows of logits. One step computes the logits [T, S] of some heads, their
softmax and its product with the values; no logit reaches the HBM. The backward pass computes them
again and takes the gradients of queries, keys, values and bias in the same step, so that it keeps
only the kernel's inputs. Heads stay adjacent in [B, T, N * H], as projections write and read them:
heads narrower than 128 need neither padding nor transposition.

Dropout is drawn within the kernel, by `dims.hash_bits` from the row, the head and the index of the
logit, so that it depends neither on the mesh nor on the blocks. Other cores draw other masks of
the same distribution.

On other platforms, it runs in Pallas' interpreter: correct, but slow.

Cost: 4 H FLOPs for each logit of a head in the forward pass, 2.5 times as many in the backward
  pass. Memory: O(T + S), and a byte for each entry of an array mask.
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
MIN_QUERIES = 16
MAX_LOGITS = 2**20  # of a head; a step holds several float32 arrays of them
LOGITS_PER_STEP = 2**18  # fewer would not outweigh the start of a step
_MAX_STEP_BYTES = 96 * 2**20
# Chips with little memory in their cores, and its bytes; other chips have more.
_SMALL_CHIPS = ("TPU v2", "TPU v3", "TPU v4")
_SMALL_CHIP_BYTES = 2**24
# Arrays [B, T or S, heads * width] that a kernel reads or writes.
_TOKEN_ARRAYS = ("q", "k", "v", "out", "d_out", "dq", "dk", "dv")


class Fused(PerDevice):
  """Equal to the dense core, for every mask, bias and dropout, up to `MAX_LOGITS` logits a head."""

  refuses = ("query_bias", "softcap")
  exact = True

  @classmethod
  def unsupported(cls, q, k, mask, softmax):
    feature = super().unsupported(q, k, mask, softmax)
    if feature:
      return feature
    _, T, N, H = q.shape
    S = k.shape[1]
    max_pairs = MAX_LOGITS
    if softmax.has_bias:
      max_pairs //= _heads_per_step(N, [H])
    if T < MIN_QUERIES or T * S > max_pairs:
      return (
        f"{T} queries and {S} keys, expected at least {MIN_QUERIES} queries and at most "
        f"{max_pairs} pairs"
      )
    layout = current()
    device = jax.devices()[0] if layout is None else layout.mesh.devices.flat[0]
    step_bytes = _step_bytes(q, S, softmax.has_bias)
    if device.device_kind.startswith(_SMALL_CHIPS) and step_bytes > _SMALL_CHIP_BYTES:
      return (
        f"{T} queries and {S} keys, whose step takes {step_bytes / 2**20:.0f} of the 16 MiB of a "
        f"{device.device_kind}"
      )
    return None

  def attend(self, q, k, v, mask, softmax):
    B, T, N, _ = q.shape
    device_slice = softmax.device_slice
    k = jnp.repeat(k, N // k.shape[2], axis=2)
    v = jnp.repeat(v, N // v.shape[2], axis=2)
    extras = {}
    allowed = mask.dense()
    if allowed is not None:
      extras["allowed"] = allowed[:, 0].astype(jnp.int8)
    bias = softmax.total_bias(mask.q_pos, mask.k_pos)
    if bias is not None:
      # The gradient of a bias is summed over rows.
      extras["bias"] = device_slice.select_heads(bias, 1).astype(jnp.float32)
    if softmax.key is not None and softmax.dropout.rate > 0:
      ids = [draw_seeds(softmax.key), device_slice.rows, device_slice.heads]
      if not device_slice.has_all_queries:
        ids.append(device_slice.queries[:1] // T)
      extras["dropout_ids"] = jnp.concatenate(ids)[None]
    q_BTX = q.reshape(B, T, -1)
    k_BSX = k.reshape(*k.shape[:2], -1)
    v_BSX = v.reshape(*v.shape[:2], -1)
    return _attend((N, softmax.dropout), q_BTX, k_BSX, v_BSX, extras).reshape(B, T, N, -1)


def draw_seeds(key: jax.Array) -> jax.Array:
  """Return the two int32 numbers from which dropout is drawn."""
  return jax.random.bits(key, (2,)).astype(jnp.int32)


def dropout_mask(dropout: Dropout, seeds, T: int, S: int, row, head, part=0) -> jax.Array:
  """Draw the weights of one head that stay: bool [T, S].

  It is [1, S] if all queries drop the same keys. Two weights share 32 random bits.

  Args:
    seeds: two int32 numbers; `row`, `head` and `part` are int32 too.
    part: the number of these T queries among the parts of a sequence that devices share.
  """
  if -2 in dropout.shared:
    T = 1
    part = 0
  bits = hash_bits(seeds, [row, head], (T, -(-S // 2)), part)
  halves = jnp.concatenate([bits & 0xFFFF, jax.lax.shift_right_logical(bits, 16)], axis=1)
  return halves[:, :S] >= round(dropout.rate * 2**16)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(static: tuple[int, Dropout], q_BTX, k_BSX, v_BSX, extras: dict) -> jax.Array:
  """Attend with heads adjacent in the last axis.

  Args:
    static: the number of heads, and the dropout.
    extras: `bias` float32 [B or 1, N, T, S], `allowed` int8 [B or 1, T or 1, S] and `dropout_ids`
      int32 [1, 2 + B + N (+ 1)], the seeds, ids and part of dropout, or some of them. (A TPU's
      blocks have two axes, apart from mapped ones.)
  """
  out = jax.ShapeDtypeStruct((*q_BTX.shape[:2], v_BSX.shape[-1]), q_BTX.dtype)
  arrays = dict(q=q_BTX, k=k_BSX, v=v_BSX)
  return _run_kernel(_forward, static, arrays, extras, dict(out=out), products=2)["out"]


def _attend_forward(static, q, k, v, extras):
  return _attend(static, q, k, v, extras), (q, k, v, extras)


def _attend_backward(static, inputs, d_out):
  q, k, v, extras = inputs
  arrays = dict(q=q, k=k, v=v, d_out=d_out.astype(q.dtype))
  out_shapes = dict(dq=q, dk=k, dv=v)
  if "bias" in extras:
    out_shapes["d_bias"] = extras["bias"]
  gradients = _run_kernel(_backward, static, arrays, extras, out_shapes, products=5)
  d_extras = {name: gradients.get(f"d_{name}") for name in extras}
  return gradients["dq"], gradients["dk"], gradients["dv"], d_extras


_attend.defvjp(_attend_forward, _attend_backward)


def _heads_per_step(heads: int, widths: list[int]) -> int:
  """Return the number of heads in a step: the fewest whose columns fill whole registers, or all."""
  for n in range(1, heads):
    if heads % n == 0 and all(n * width % LANES == 0 for width in widths):
      return n
  return heads


def _rows_per_step(B: int, head_logits: int, n: int) -> int:
  """Return the number of rows in a step of `n` heads: the most that `LOGITS_PER_STEP` allows."""
  rows = 1
  for divisor in range(2, B + 1):
    if B % divisor == 0 and divisor * n * head_logits <= LOGITS_PER_STEP:
      rows = divisor
  return rows


def _step_bytes(q: jax.Array, S: int, biased: bool) -> int:
  """Estimate the memory of a step of the backward pass.

  It holds five arrays of logits, and two buffers for each block of its inputs and results: one in
  use, one in transfer.
  """
  B, T, N, H = q.shape
  n = _heads_per_step(N, [H])
  rows = max(1, min(B, LOGITS_PER_STEP // (n * T * S)))
  bias_bytes = 2 * 4 * T * S if biased else 0
  blocks = rows * n * (H * (3 * T + 4 * S) * q.dtype.itemsize + bias_bytes)
  return 5 * 4 * T * S + 2 * (blocks + T * S)


def _block_spec(name: str, x, heads: int, n: int, rows: int) -> pl.BlockSpec:
  """Return the block of an array in a step of `n` heads and `rows` rows; the grid is (h, b)."""
  from jax.experimental.pallas import tpu

  if name == "dropout_ids":
    return pl.BlockSpec(memory_space=tpu.SMEM)
  if name in _TOKEN_ARRAYS:
    return pl.BlockSpec((rows, x.shape[1], x.shape[2] // heads * n), lambda h, b: (b, 0, h))
  shared = x.shape[0] == 1
  block_rows = min(rows, x.shape[0])
  if x.ndim == 4:
    block = (block_rows, n, *x.shape[-2:])
    return pl.BlockSpec(block, lambda h, b: (0 if shared else b, h, 0, 0))
  return pl.BlockSpec((block_rows, *x.shape[-2:]), lambda h, b: (0 if shared else b, 0, 0))


def _run_kernel(
  kernel, static, arrays: dict, extras: dict, out_shapes: dict, products: int
) -> dict:
  """Run a kernel over the blocks of heads and, for each of them, over the blocks of rows.

  Args:
    static, extras: see `_attend`.
    arrays: [B, T or S, heads * width] each.
    out_shapes: arrays with the shapes and dtypes of the results, by name.
    products: number of matrix products of the kernel for each logit.
  """
  from jax.experimental.pallas import tpu

  heads, dropout = static
  B, T, _ = arrays["q"].shape
  S = arrays["k"].shape[1]
  inputs = arrays | extras
  widths = [x.shape[-1] // heads for x in arrays.values()]
  n = _heads_per_step(heads, widths)
  rows = _rows_per_step(B, T * S, n)
  id_count = inputs["dropout_ids"].shape[1] - 2 if "dropout_ids" in inputs else 0

  def run(*refs):
    refs = dict(zip([*inputs, *out_shapes], refs, strict=True))
    block = pl.program_id(0)
    step = pl.program_id(1)
    if "d_bias" in refs:

      @pl.when((step == 0) | (out_shapes["d_bias"].shape[0] > 1))
      def _():
        refs["d_bias"][...] = jnp.zeros_like(refs["d_bias"])

    def run_row(r, carry):
      for h in range(n):
        ids = []
        if id_count:
          # the row, the head and, if devices share the queries, their part
          indices = (step * rows + r, B + block * n + h, *range(B + heads, id_count))
          ids = [refs["dropout_ids"][0, 2 + index] for index in indices]
        kernel(_Head(refs, n, dropout, ids, r, h))
      return carry

    jax.lax.fori_loop(0, rows, run_row, 0)

  columns = -(-S // LANES) * LANES
  width = -(-max(widths) // LANES) * LANES
  flops = 2 * products * B * heads * T * columns * width
  outputs = pl.pallas_call(
    run,
    grid=(heads // n, B // rows),
    in_specs=[_block_spec(name, x, heads, n, rows) for name, x in inputs.items()],
    out_specs=[_block_spec(name, x, heads, n, rows) for name, x in out_shapes.items()],
    out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in out_shapes.values()],
    compiler_params=tpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=_MAX_STEP_BYTES
    ),
    cost_estimate=pl.CostEstimate(flops=flops, transcendentals=B * heads * T * S, bytes_accessed=0),
    interpret=platform() != "tpu",
    name=f"fused{kernel.__name__}",
  )(*inputs.values())
  return dict(zip(out_shapes, outputs, strict=True))


class _Head:
  """A head of a row in a step, whose blocks are read and written by name like a dictionary's.

  Attributes:
    refs: the blocks, [rows, T or S, n * width]; of `bias` and `d_bias` [rows or 1, n, T, S], of
      `allowed` [rows or 1, T or 1, S].
    n: number of heads in the blocks.
    ids: the row, the head and the part of the queries, from which dropout is drawn.
    r, h: the row and the head within the blocks.
  """

  def __init__(self, refs: dict, n: int, dropout: Dropout, ids: list, r, h: int):
    self.refs = refs
    self.n = n
    self.dropout = dropout
    self.ids = ids
    self.r = r
    self.h = h

  def _index(self, name: str) -> tuple:
    ref = self.refs[name]
    row = self.r if ref.shape[0] > 1 else 0
    if name in ("bias", "d_bias"):
      return row, self.h
    if name == "allowed":
      return (row,)
    width = ref.shape[-1] // self.n
    return row, slice(None), slice(self.h * width, (self.h + 1) * width)

  def __getitem__(self, name: str) -> jax.Array:
    return self.refs[name][self._index(name)]

  def __setitem__(self, name: str, block: jax.Array) -> None:
    self.refs[name][self._index(name)] = block.astype(self.refs[name].dtype)

  def apply_mask(self, logits: jax.Array, masked_logit: float) -> jax.Array:
    if "allowed" not in self.refs:
      return logits
    return jnp.where(self["allowed"].astype(jnp.int32) != 0, logits, masked_logit)

  def powers(self) -> tuple[jax.Array, jax.Array]:
    """Return exp(logit - maximum), float32 [T, S], and the inverse of its sums, [T, 1]."""
    logits = matmul_float32(self["q"], self["k"], 1, 1)
    if "bias" in self.refs:
      logits += self["bias"]
    logits = self.apply_mask(logits, MASKED_LOGIT)
    powers = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    return powers, 1.0 / jnp.sum(powers, axis=-1, keepdims=True)

  def apply_dropout(self, weights: jax.Array) -> jax.Array:
    """Zero the weights that dropout drops and rescale the others."""
    if "dropout_ids" not in self.refs:
      return weights
    seeds = [self.refs["dropout_ids"][0, i] for i in range(2)]
    keep = dropout_mask(self.dropout, seeds, *weights.shape, *self.ids)
    rescale = 2**16 / (2**16 - round(self.dropout.rate * 2**16))
    return weights * jnp.where(keep, rescale, 0.0)


def matmul_float32(a: jax.Array, b: jax.Array, a_axis: int, b_axis: int) -> jax.Array:
  """Multiply two matrices over an axis of each; return float32."""
  dimension_numbers = (((a_axis,), (b_axis,)), ((), ()))
  return jax.lax.dot_general(a, b, dimension_numbers, preferred_element_type=jnp.float32)


# The names of the next two functions are part of the kernels' names in profiles.
def _forward(head: _Head) -> None:
  powers, inverse = head.powers()
  weights = head.apply_dropout(powers).astype(head["v"].dtype)
  head["out"] = matmul_float32(weights, head["v"], 1, 0) * inverse


def _backward(head: _Head) -> None:
  powers, inverse = head.powers()
  weights = powers * inverse
  d_out = head["d_out"]
  d_weights = head.apply_dropout(matmul_float32(d_out, head["v"], 1, 1))
  d_logits = weights * (d_weights - jnp.sum(weights * d_weights, axis=-1, keepdims=True))
  d_logits = head.apply_mask(d_logits, 0.0)
  if "d_bias" in head.refs:
    head["d_bias"] += d_logits
  d_logits = d_logits.astype(d_out.dtype)
  head["dq"] = matmul_float32(d_logits, head["k"], 1, 0)
  head["dk"] = matmul_float32(d_logits, head["q"], 0, 0)
  head["dv"] = matmul_float32(head.apply_dropout(weights).astype(d_out.dtype), d_out, 0, 0)


make = Fused
