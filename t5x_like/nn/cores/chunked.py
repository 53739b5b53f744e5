"""Exact attention in linear memory: a running softmax over chunks of keys, one chunk of queries at a time.

The running maximum and sum follow Milakov and Gimelshein 2018, their use in attention Rabe and Staats 2021 and Dao et
al. 2022 (https://arxiv.org/abs/2205.14135, section 3.1). It is plain XLA and runs on every backend. The custom backward
pass recomputes each chunk's probabilities from the saved maxima and sums.

Cost: as many FLOPs as dense attention, T * S * (4 H per head), in the forward pass, 2.5 times as many in the backward
pass, which recomputes the logits. Chunks hidden by causality are computed too. Memory: O(T + S) for activations and
query_chunk * key_chunk logits per head, forward and backward. A position bias is computed piece by piece; one given as
an array is [T, S] already.
"""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp

from t5x_like.nn.cores import Core, Softmax
from t5x_like.nn.cores._blocks import blocked
from t5x_like.nn.cores.dense import NEGATIVE
from t5x_like.nn.mask import Mask
from t5x_like.slots import Positive


class Chunked(Core):
  """Equal to the dense core for every mask, position bias, cap and grouping of heads; refuses Shaw's positions.

  A query that sees no key at all gets the mean of all values, as in the dense core.

  Args:
    query_chunk, key_chunk: tokens in a chunk; sequences are padded to a multiple, and shorter ones are one chunk.
  """

  refuses = ("query_bias",)
  pieces = True

  def __init__(self, *, query_chunk: Positive = 512, key_chunk: Positive = 512):
    self.query_chunk = query_chunk
    self.key_chunk = key_chunk

  def attend(self, q, k, v, mask, softmax):
    B, T, N, H = q.shape
    S, K = k.shape[1:3]
    t, s = min(self.query_chunk, T), min(self.key_chunk, S)
    rows, columns = -(-T // t), -(-S // s)
    q_side, k_side = partial(_chunks, count=rows, size=t), partial(_chunks, count=columns, size=s)
    scheme, bias_grid = softmax.bias, None
    if isinstance(scheme, jax.Array):
      grid = blocked(blocked(scheme, columns, s, axis=3), rows, t, axis=2)  # [B or 1, N, rows, t, columns, s]
      scheme, bias_grid = None, grid.transpose(2, 4, 0, 1, 3, 5)
    rules = _Rules(mask.causal, mask.window, softmax.softcap, 0.0 if softmax.key is None else softmax.dropout_rate)
    out = _attend(
      rules,
      q_side(q.reshape(B, T, K, N // K, H)),
      k_side(k),
      k_side(v),
      (scheme, softmax.position),
      bias_grid,
      q_side((mask.q_pos, mask.q_segments)),
      k_side((mask.k_pos, mask.k_segments, mask.k_valid, mask.k_prefix, jnp.ones((1, S), bool))),
      softmax.key,
    )  # [rows, B, N, t, H]
    return out.transpose(1, 0, 3, 2, 4).reshape(B, rows * t, N, H)[:, :T].astype(q.dtype)

  def decoding(self) -> "Chunked":
    return self


def _chunks(tree, count: int, size: int):
  """[B, length, ...] -> [count, B, size, ...] of every array."""
  return jax.tree.map(lambda x: jnp.moveaxis(blocked(x, count, size), 1, 0), tree)


@dataclasses.dataclass(frozen=True)
class _Rules:
  """What is static under tracing."""

  causal: bool
  window: int | None
  softcap: float | None
  dropout_rate: float

  def logits(self, q, k, schemes, bias, q_side, k_side) -> jax.Array:
    """float32 [B, N, t, s] of one chunk, before the mask: the differentiable part."""
    B, t, K, G, _ = q.shape
    logits = jnp.einsum("BTKGH,BSKH->BKGTS", q, k, preferred_element_type=jnp.float32).reshape(B, K * G, t, -1)
    scheme, position = schemes
    softmax = Softmax(scheme if bias is None else bias, position, self.softcap)
    logits, added = softmax.capped(logits), softmax.biases(q_side[0], k_side[0])
    return logits if added is None else logits + added

  def allowed(self, q_side, k_side) -> tuple[jax.Array | None, jax.Array]:
    """(bool [B or 1, 1, t, s] of the mask or None, bool [1, 1, 1, s]: False where keys are this core's padding)."""
    (q_pos, q_segments), (k_pos, k_segments, k_valid, k_prefix, real) = q_side, k_side
    mask = Mask(q_pos, k_pos, q_segments, k_segments, k_valid, k_prefix, causal=self.causal, window=self.window)
    return mask.dense(), real[:, None, None, :]

  def hide(self, logits, q_side, k_side) -> jax.Array:
    allowed, real = self.allowed(q_side, k_side)
    if allowed is not None:
      logits = jnp.where(allowed, logits, NEGATIVE)
    return jnp.where(real, logits, -math.inf)  # every chunk has a real key, so no row is all -inf

  def dropout(self, weights_BNTS, key, column) -> jax.Array:
    """One mask for all queries, as in the dense core; the same in the backward pass."""
    if self.dropout_rate == 0.0:
      return weights_BNTS
    B, N, _, s = weights_BNTS.shape
    keep = jax.random.bernoulli(jax.random.fold_in(key, column), 1.0 - self.dropout_rate, (B, N, 1, s))
    return jnp.where(keep, weights_BNTS / (1.0 - self.dropout_rate), 0.0)


def _grouped(x_BNTX: jax.Array, kv_heads: int) -> jax.Array:
  """[B, N, T, X] -> [B, K, G, T, X]"""
  B, N, T, X = x_BNTX.shape
  return x_BNTX.reshape(B, kv_heads, N // kv_heads, T, X)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(rules: _Rules, q, k, v, schemes, bias, q_side, k_side, key) -> jax.Array:
  """float32 [rows, B, N, t, H] from chunks of everything."""
  return _forward(rules, q, k, v, schemes, bias, q_side, k_side, key)[0]


def _forward(rules: _Rules, q, k, v, schemes, bias, q_side, k_side, key):
  B, t, K, G, H = q.shape[1:]
  N = K * G
  columns = jnp.arange(k.shape[0])

  def row(chunk):
    q, q_side, bias = chunk

    def column(carry, chunk):
      peak_BNT, total_BNT, out_BNTH = carry
      k, v, k_side, bias, index = chunk
      logits = rules.hide(rules.logits(q, k, schemes, bias, q_side, k_side), q_side, k_side)
      new_peak = jnp.maximum(peak_BNT, logits.max(-1))
      shrink, weights = jnp.exp(peak_BNT - new_peak), jnp.exp(logits - new_peak[..., None])
      total_BNT = total_BNT * shrink + weights.sum(-1)
      weights = _grouped(rules.dropout(weights, key, index).astype(v.dtype), K)
      more = jnp.einsum("BKGTS,BSKH->BKGTH", weights, v, preferred_element_type=jnp.float32)
      return (new_peak, total_BNT, out_BNTH * shrink[..., None] + more.reshape(B, N, t, H)), None

    start = jnp.full((B, N, t), -math.inf, jnp.float32), jnp.zeros((B, N, t), jnp.float32)
    start = (*start, jnp.zeros((B, N, t, H), jnp.float32))
    (peak, total, out), _ = jax.lax.scan(column, start, (k, v, k_side, bias, columns))
    return out / total[..., None], peak, total

  out, peak, total = jax.lax.map(row, (q, q_side, bias))
  return out, (q, k, v, schemes, bias, q_side, k_side, key, out, peak, total)


def _backward(rules: _Rules, kept, d_out):
  q, k, v, schemes, bias, q_side, k_side, key, out, peak, total = kept
  K = k.shape[3]
  columns = jnp.arange(k.shape[0])
  inner = jnp.sum(d_out * out, axis=-1)  # [rows, B, N, t]: what softmax's gradient subtracts (Dao et al., appendix B)

  def zeros(tree):
    return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), tree)

  def add(a, b):
    return jax.tree.map(lambda a, b: a + b.astype(jnp.float32), a, b)

  def row(carry, chunk):
    dk, dv, d_schemes = carry
    q, q_side, bias, d_out, inner, peak, total = chunk
    d_out = d_out.astype(jnp.float32)

    def column(carry, chunk):
      dq, d_schemes = carry
      k, v, k_side, bias, index = chunk
      logits, pull = jax.vjp(lambda *args: rules.logits(*args, q_side, k_side), q, k, schemes, bias)
      logits = rules.hide(logits, q_side, k_side)
      weights = jnp.exp(logits - peak[..., None]) / total[..., None]
      dropped = _grouped(rules.dropout(weights, key, index).astype(v.dtype), K)
      d_out_grouped = _grouped(d_out.astype(v.dtype), K)
      dv = jnp.einsum("BKGTS,BKGTH->BSKH", dropped, d_out_grouped, preferred_element_type=jnp.float32)
      d_weights = jnp.einsum("BKGTH,BSKH->BKGTS", d_out_grouped, v, preferred_element_type=jnp.float32)
      d_weights = rules.dropout(d_weights.reshape(weights.shape), key, index)
      d_logits = weights * (d_weights - inner[..., None])
      allowed, real = rules.allowed(q_side, k_side)
      d_logits = jnp.where(real if allowed is None else real & allowed, d_logits, 0.0)
      dq_more, dk, d_schemes_more, d_bias = pull(d_logits)
      return (add(dq, dq_more), add(d_schemes, d_schemes_more)), (dk.astype(jnp.float32), dv, d_bias)

    start = zeros(q), d_schemes
    (dq, d_schemes), (dk_more, dv_more, d_bias) = jax.lax.scan(column, start, (k, v, k_side, bias, columns))
    return (dk + dk_more, dv + dv_more, d_schemes), (dq.astype(q.dtype), d_bias)

  start = zeros(k), zeros(v), zeros(schemes)
  chunks = q, q_side, bias, d_out, inner, peak, total
  (dk, dv, d_schemes), (dq, d_bias) = jax.lax.scan(row, start, chunks)
  d_schemes = jax.tree.map(lambda d, x: d.astype(x.dtype), d_schemes, schemes)
  return dq, dk.astype(k.dtype), dv.astype(v.dtype), d_schemes, d_bias, None, None, None


_attend.defvjp(_forward, _backward)


make = Chunked
