"""Chunked and local attention equal dense attention in values and gradients, at a lower cost."""

import dataclasses
import functools
import math

import core_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from arrays import assert_trees_close
from more import later
from t5x_like.nn.cores.chunked import Chunked
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.cores.local import Local
from t5x_like.nn.dims import Dropout
from t5x_like.nn.mask import Mask, positions
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from tests import topics

SAVED_WEIGHTS = [("dense", "causal"), ("local", "causal_w5")]


@pytest.mark.parametrize("spec, kind", SAVED_WEIGHTS + [*topics.cases("SAVED_WEIGHTS").values()])
def test_attention_weights_are_saved_in_the_dtype_of_the_values(spec, kind):
  q, k, v = (x.astype(jnp.bfloat16) for x in cases.qkv())
  core = cases.make(spec)

  def run(q, k, v):
    return core(q, k, v, cases.mask(kind), scale=0.4)

  residuals = jax.tree.leaves(jax.eval_shape(lambda *qkv: jax.vjp(run, *qkv)[1], q, k, v))
  assert not [array.shape for array in residuals if array.dtype == jnp.float32 and array.ndim > 3]


# Chunked

# (mask, aligned, bias, softcap, kv_heads): every kind of mask, with varied biases and groups.
CHUNKED_CASES = [
  ("full", True, "none", None, 1),
  ("padded", False, "table", 2.0, 2),
  ("causal", True, "alibi_layer", None, 4),
  ("prefix", True, "table", 2.0, 1),
  ("packed", True, "table", None, 2),
  ("packed_causal", False, "alibi_layer", 2.0, 4),
  later(("packed_causal", True, "table", 2.0, 2)),
  ("causal_w5", True, "table", 2.0, 2),
  ("causal_w5", False, "none", None, 2),
  ("packed_w6", True, "alibi_layer", None, 1),
]


@pytest.mark.parametrize("kind, aligned, bias, softcap, kv_heads", CHUNKED_CASES)
def test_chunked_equals_dense(kind, aligned, bias, softcap, kv_heads):
  args = (*cases.qkv(K=kv_heads), *cases.bias(bias))
  core = Chunked(query_chunk=8, key_chunk=10)  # 37 tokens are a multiple of neither
  mask = dataclasses.replace(cases.mask(kind), aligned=aligned)
  cases.assert_equals_dense(core, mask, args, softcap=softcap)


@pytest.mark.parametrize(
  "name", ["chunked", "splash", later("short"), later("fused"), later("ring")]
)
def test_values_may_be_narrower_than_keys(name):
  """Latent attention has such values; a core that pads them must slice the result."""
  q, k, v = cases.qkv(K=4)
  args = (q, k, v[..., :5], None, None)
  mask = dataclasses.replace(cases.mask("packed_causal"), aligned=True)
  mask = dataclasses.replace(mask, k_valid=None)
  cases.assert_equals_dense(cases.make(name), mask, args, mask.q_segments > 0)


def test_output_of_a_query_without_visible_keys_is_zero():
  q, k, v = cases.qkv()
  mask = Mask(positions(37), positions(37) + 9, causal=True)
  out = jax.jit(lambda *qkv: Chunked(query_chunk=8, key_chunk=10)(*qkv, mask, scale=0.4))(q, k, v)
  assert not out[:, :9].any()
  assert np.abs(out[:, 9:]).min(-1).all()


@pytest.mark.parametrize("kind", ["causal", "causal_w5", "full_w5", "packed", "packed_causal"])
def test_chunked_does_not_compute_hidden_blocks(kind):
  """NaN in the values of a hidden block does not reach the output, unlike zero times NaN."""
  mask = dataclasses.replace(cases.mask(kind), aligned=True)
  q, k, v = cases.qkv()
  run = jax.jit(lambda v: Chunked(query_chunk=4, key_chunk=4)(q, k, v, mask, scale=0.4))
  allowed = np.broadcast_to(mask.dense(), (2, 1, 37, 37))[:, 0]
  for row in (0, 5, 30):
    block = slice(row // 4 * 4, row // 4 * 4 + 4)
    hidden = [c for c in range(10) if not allowed[:, block, 4 * c : 4 * c + 4].any()]
    keys = np.concatenate([np.arange(4 * c, min(4 * c + 4, 37)) for c in hidden])
    assert np.isfinite(run(v.at[:, keys].set(jnp.nan))[:, row]).all()
    assert np.isnan(run(v.at[:, row].set(jnp.nan))[:, row]).all()


@pytest.mark.parametrize(
  "mesh, kv_heads, kind, changes",
  [
    (dict(data=2, tensor=4), 2, "packed_causal", {}),  # each device has one of two heads of a group
    (dict(fsdp=2, tensor=2, sequence=2), 4, "causal_w5", {}),
    # Queries and heads are assigned to the same mesh axis.
    later((dict(data=2, tensor=4), 2, "full", {"length": "tensor"})),
    later((dict(tensor=8), 2, "full", {})),  # eight devices do not divide four heads: replicated
  ],
)
def test_chunked_on_a_mesh_equals_one_device(mesh, kv_heads, kind, changes):
  mask = dataclasses.replace(cases.mask(kind), aligned=True)
  mask = jax.tree.map(lambda x: x[:, :36], mask)
  args = (*cases.qkv(T=36, K=kv_heads), *cases.bias("table"))
  options = dict(dropout=Dropout(0.2), key=jax.random.key(3))

  def run():
    core = Chunked(query_chunk=5, key_chunk=8)
    return cases.with_gradients(core, mask, cases.sees_a_key(mask), **options)(*args)

  expected = run()
  with Rules.make(make_mesh(mesh), changes).activate():
    actual = run()
  assert_trees_close(actual, expected, rtol=2e-4, atol=3e-5)


@pytest.mark.parametrize("chunks", [(64, 64), (1, 7), (37, 1)])
def test_chunks_of_any_size_equal_dense(chunks):
  core = Chunked(query_chunk=chunks[0], key_chunk=chunks[1])
  cases.assert_equals_dense(core, cases.mask("causal"), (*cases.qkv(), *cases.bias("table")))


def test_chunked_equals_dense_on_a_cache():
  """There are fewer queries than keys, and some slots of the cache are empty."""
  args = (*cases.qkv(T=5, S=23), None, None)
  k_pos = jnp.asarray(np.where(np.arange(23) < 14, np.arange(23), -1)[None], jnp.int32)
  mask = Mask(positions(5) + 9, k_pos, k_valid=jnp.broadcast_to(k_pos >= 0, (2, 23)), causal=True)
  core = Chunked(query_chunk=2, key_chunk=4)
  assert core.for_decoding() is core
  cases.assert_equals_dense(core, mask, args)


def test_chunked_in_bfloat16_is_close_to_float32():
  q, k, v = (x.astype(jnp.bfloat16) for x in cases.qkv())
  mask = cases.mask("causal")
  out = jax.jit(lambda *qkv: Chunked(query_chunk=8, key_chunk=8)(*qkv, mask, scale=0.4))(q, k, v)
  assert out.dtype == jnp.bfloat16
  exact = Dense()(*(x.astype(jnp.float32) for x in (q, k, v)), mask, scale=0.4)
  assert float(jnp.abs(out.astype(jnp.float32) - exact).max()) < 0.03


def attend_with_dropout(shared, *qkv, key, chunk=8, rate=0.5):
  core = Chunked(query_chunk=chunk, key_chunk=10)
  dropout = Dropout(rate, (-2,) if shared else ())
  return core(*qkv, cases.mask("causal"), scale=0.4, dropout=dropout, key=key)


@pytest.mark.parametrize("shared", [later(False), True])
def test_chunked_dropout_does_not_depend_on_the_chunks(shared):
  key = jax.random.key(2)
  outputs = []
  for chunk in (8, 37):
    attend = functools.partial(attend_with_dropout, shared, key=key, chunk=chunk)
    outputs.append(jax.jit(attend)(*cases.qkv()))
  np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shared", [later(False), True])
def test_chunked_dropout_is_the_same_in_both_passes(shared):
  q, k, v = cases.qkv()
  cotangent = jnp.asarray(cases.normal(*q.shape, seed=30))

  def loss(*qkv):
    out = attend_with_dropout(shared, *qkv, key=jax.random.key(2))
    return jnp.vdot(out, cotangent)

  dq, dk, dv = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(q, k, v)
  loss = jax.jit(loss)
  # The loss is linear in v.
  np.testing.assert_allclose(jnp.vdot(dv, v), loss(q, k, v), rtol=1e-3, atol=1e-3)
  # In q and k, the gradient equals a central difference in a random direction.
  q_direction = jnp.asarray(cases.normal(*q.shape, seed=31))
  k_direction = jnp.asarray(cases.normal(*k.shape, seed=32))
  step = 5e-3
  ahead = loss(q + step * q_direction, k + step * k_direction, v)
  behind = loss(q - step * q_direction, k - step * k_direction, v)
  slope = jnp.vdot(dq, q_direction) + jnp.vdot(dk, k_direction)
  np.testing.assert_allclose(slope, (ahead - behind) / (2 * step), rtol=2e-2)


def assert_mean_is_near(draws, expected):
  """Assert that the mean of independent draws is within six standard errors of `expected`."""
  deviation = float(draws.std(0).max())
  error = float(jnp.abs(draws.mean(0) - expected).max())
  assert error < 6 * deviation / math.sqrt(len(draws))
  assert deviation > 0.1


@pytest.mark.parametrize("shared", [later(False), True])
def test_chunked_dropout_keeps_the_expectation(shared):
  qkv = cases.qkv()

  def attend(key):
    return attend_with_dropout(shared, *qkv, key=key, chunk=37, rate=0.2)

  keys = jax.random.split(jax.random.key(0), 256)
  assert_mean_is_near(jax.jit(jax.vmap(attend))(keys), attend(None))


def temporary_bytes(core, T, bias=None, layers=None):
  """Return the temporary memory of a compiled forward and backward pass on a row of T tokens.

  With `layers`, the pass runs through a scanned stack.
  """
  shapes = [jax.ShapeDtypeStruct((1, T, heads, 8), jnp.float32) for heads in (2, 1, 1)]
  mask = Mask(positions(T), positions(T), causal=True, aligned=True)

  def attend(q, k, v):
    return core(q, k, v, mask, bias, None, scale=0.4)

  def stack(q, k, v):
    layer = jax.checkpoint(lambda q: attend(q, k, v))
    return jax.lax.scan(lambda q, _: (layer(q), None), q, length=layers)[0]

  forward = stack if layers else attend

  def loss(q, k, v):
    return jnp.sum(forward(q, k, v) ** 2)

  gradient = jax.grad(loss, argnums=(0, 1, 2))
  return jax.jit(gradient).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("layers", [None, 2])
def test_chunked_memory_grows_linearly(layers):
  """In a stack too, whose layers share masks and biases: these are not computed in advance."""
  bias = cases.bias("table", N=2)[0]
  core = Chunked(query_chunk=64, key_chunk=64)
  small = temporary_bytes(core, 2048, bias, layers)
  large = temporary_bytes(core, 8192, bias, layers)
  assert large < 4.2 * small
  assert large - small < 1600 * (8192 - 2048)  # 400 floats for each further token
  # For comparison: the memory of dense attention grows quadratically.
  assert temporary_bytes(Dense(), 2048) > 11 * temporary_bytes(Dense(), 512)


# Local


@pytest.mark.parametrize(
  "kind, bias, softcap, kv_heads",
  [
    ("full_w5", "table", None, 2),
    ("padded_w8", "array", 2.0, 1),
    ("causal_w5", "alibi_layer", None, 4),
    ("prefix_w6", "array", 2.0, 2),
    ("packed_w4", "table", 2.0, 1),
    ("packed_causal_w7", "none", None, 2),
    ("causal_w1", "table", None, 2),
    ("full_w36", "none", None, 2),
    ("causal_w500", "array", None, 2),
  ],
)
def test_local_equals_dense(kind, bias, softcap, kv_heads):
  args = (*cases.qkv(K=kv_heads), *cases.bias(bias))
  cases.assert_equals_dense(Local(), cases.mask(kind), args, softcap=softcap)


def test_narrower_window_of_core_and_mask_applies():
  q, k, v = cases.qkv()
  for core_window, mask_window in ((4, None), (4, 9), (9, 4)):
    mask = cases.mask("causal" if mask_window is None else f"causal_w{mask_window}")
    out = jax.jit(lambda *qkv: Local(window=core_window)(*qkv, mask, scale=0.4))(q, k, v)
    expected = Dense()(q, k, v, cases.mask("causal_w4"), scale=0.4)
    rows = cases.sees_a_key(cases.mask("causal_w4"))[:, :, None, None]
    np.testing.assert_allclose(out * rows, expected * rows, rtol=1e-4, atol=1e-5)


def test_local_uses_its_window_in_decoding():
  q, k, v = cases.qkv()
  core = Local(window=4)
  full = jax.jit(lambda *qkv: core(*qkv, cases.mask("causal"), scale=0.4))(q, k, v)
  decode = jax.jit(lambda mask, *qkv: core.for_decoding()(*qkv, mask, scale=0.4))
  for t in (0, 3, 20):
    k_valid = cases.mask("causal").k_valid
    mask = Mask(positions(37)[:, t : t + 1], positions(37), k_valid=k_valid, causal=True)
    step = decode(mask, q[:, t : t + 1], k, v)
    np.testing.assert_allclose(step[:, 0], full[:, t], rtol=1e-4, atol=1e-5)


def test_packed_sequences_equal_separate_sequences():
  q, k, v = cases.qkv()
  for core in (Local(window=4), Chunked(query_chunk=8, key_chunk=8)):
    run = jax.jit(lambda mask, *qkv: core(*qkv, mask, scale=0.4))
    out = run(cases.mask("packed"), q, k, v)
    # The second sequence of the first row.
    alone = run(Mask(positions(9), positions(9)), q[:1, 11:20], k[:1, 11:20], v[:1, 11:20])
    np.testing.assert_allclose(out[:1, 11:20], alone, rtol=1e-4, atol=1e-5)


def test_local_dropout_keeps_the_expectation():
  q, k, v = cases.qkv()
  mask = cases.mask("causal_w6")

  def attend(key):
    return Local()(q, k, v, mask, scale=0.4, dropout=Dropout(0.2), key=key)

  keys = jax.random.split(jax.random.key(0), 256)
  out = jax.jit(jax.vmap(attend))(keys)
  rows = cases.sees_a_key(mask)
  assert_mean_is_near(out[:, rows], jax.jit(attend)(None)[rows])


@pytest.mark.parametrize("causal", [later(False), True])
def test_flops_of_local_attention_grow_linearly_with_the_length(causal):
  spec = {"name": "local", "window": 16}
  assert 3.7 < cases.flops(spec, 1024, causal) / cases.flops(spec, 256, causal) < 4.3


def test_the_backward_pass_runs_inside_remat_scan_and_vmap():
  q, k, v = cases.qkv()
  core = Chunked(query_chunk=8, key_chunk=8)

  def gradient(core):
    def loss(q):
      body = jax.checkpoint(lambda x, _: (core(x, k, v, cases.mask("causal"), scale=0.4), None))
      return jnp.sum(jax.lax.scan(body, q, None, length=2)[0] ** 2)

    return jax.vmap(jax.grad(loss))

  queries = jnp.stack([q, 2 * q])
  np.testing.assert_allclose(
    jax.jit(gradient(core))(queries), jax.jit(gradient(Dense()))(queries), rtol=1e-3, atol=1e-5
  )
