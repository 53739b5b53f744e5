"""Draw inputs and masks for tests of attention cores, and compare cores with the dense core."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from arrays import normal, rngs
from t5x_like import slots
from t5x_like.nn import cores
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.dims import Dims
from t5x_like.nn.mask import Mask, positions
from t5x_like.nn.positions.alibi import Alibi
from t5x_like.nn.positions.relative_bias import RelativeBias

DIMS = Dims(embed=32, heads=4, kv_heads=2, head_dim=8, mlp=64, layers=1)


def make(spec, dims=DIMS, causal=False):
  """Build a core as a recipe does."""
  return slots.make("core", spec, cores, "make", rngs=rngs(), dims=dims, causal=causal)


def heads(n):
  return dataclasses.replace(DIMS, heads=n)


def qkv(B=2, T=37, S=None, N=4, K=2, H=8, seed=0):
  S = S or T
  shapes = (B, T, N, H), (B, S, K, H), (B, S, K, H)
  return tuple(jnp.asarray(normal(*shape, seed=seed + i)) for i, shape in enumerate(shapes))


def segments_and_positions(T=37):
  """Return (segments, positions) int32 [2, T] of rows of three sequences; segment 0 is padding."""
  lengths = [(11, 9, 14), (20, 6, 7)]
  segments = np.zeros((2, T), np.int32)
  pos = np.zeros((2, T), np.int32)
  for row, parts in enumerate(lengths):
    start = 0
    for number, length in enumerate(parts):
      segments[row, start : start + length] = number + 1
      pos[row, start : start + length] = np.arange(length)
      start += length
  return jnp.asarray(segments), jnp.asarray(pos)


def mask(kind: str, T=37) -> Mask:
  """Return a mask of two rows of T tokens: full, padded, causal, prefix, packed or packed_causal.

  A suffix `_w5` adds a window of 5.
  """
  kind, _, window = kind.partition("_w")
  pos = positions(T)
  options = {"window": int(window) if window else None, "causal": "causal" in kind}
  if kind.startswith("packed"):
    segments, packed_pos = segments_and_positions(T)
    return Mask(packed_pos, packed_pos, segments, segments, segments > 0, **options)
  if kind == "prefix":
    options["causal"] = True
    options["k_prefix"] = jnp.asarray(np.arange(T)[None] < np.array([[7], [12]]))
  if kind != "full":
    options["k_valid"] = jnp.asarray(np.arange(T)[None] < np.array([[T], [T - 9]]))
  return Mask(pos, pos, **options)


def bias(kind: str, T=37, N=4):
  """Return (the bias of the stack, the position scheme of a layer); at most one is not None."""
  if kind == "table":
    return RelativeBias(rngs(5), heads(N), buckets=8, max_distance=20), None
  if kind == "array":
    return jnp.asarray(normal(1, N, T, T, seed=9)), None
  return None, (Alibi(heads(N)) if kind == "alibi_layer" else None)


def sees_a_key(mask: Mask, B=2) -> jax.Array:
  """Return a mask [B, T] of the queries that have a visible key."""
  allowed = mask.dense()
  T = mask.q_pos.shape[1]
  if allowed is None:
    return jnp.ones((B, T), bool)
  return jnp.broadcast_to(allowed[:, 0].any(-1), (B, T))


def with_gradients(core, mask: Mask, rows: jax.Array, *, scale=0.4, **options):
  """Return a compiled function `(q, k, v, bias, position) -> (output, gradients of all five)`.

  Args:
    rows: a mask [B, T] of the queries whose output counts.
  """
  weights = jnp.asarray(normal(1, rows.shape[1], 1, 1, seed=20))

  def loss(q, k, v, bias, position):
    out = core(q, k, v, mask, bias, position, scale=scale, **options)
    out = jnp.where(rows[:, :, None, None], out, 0.0)
    return jnp.sum(jnp.sin(out) * weights), out

  run = jax.value_and_grad(loss, argnums=(0, 1, 2, 3, 4), has_aux=True)

  def call(*args):
    (_, out), gradients = run(*args)
    return out, gradients

  return jax.jit(call)


def assert_equals_dense(core, mask: Mask, args, rows=None, **options):
  """Assert that output and gradients, also of the bias's parameters, equal the dense core's."""
  rows = sees_a_key(mask) if rows is None else rows
  actual = with_gradients(core, mask, rows, **options)(*args)
  expected = with_gradients(Dense(), mask, rows, **options)(*args)
  for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
    assert a.dtype == e.dtype
    np.testing.assert_allclose(a, e, rtol=2e-4, atol=3e-5)


def flops(spec, T, causal=False):
  """Return the compiler's count of FLOPs of the forward and backward pass."""
  core = make(spec, Dims(32, heads=2, kv_heads=2, head_dim=16, mlp=64, layers=1), causal)
  mask = Mask(positions(T), positions(T), causal=causal)
  shapes = [jax.ShapeDtypeStruct((1, T, 2, 16), jnp.float32)] * 3

  def run(core, q, k, v):
    return jnp.sum(core(q, k, v, mask, scale=0.25) ** 2)

  gradient = jax.jit(jax.grad(run, argnums=(0, 1, 2, 3)))
  return gradient.lower(core, *shapes).compile().cost_analysis()["flops"]
