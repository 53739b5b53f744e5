"""The exact cores: chunked and local attention are dense attention, in values and gradients, at
less memory or work."""

import dataclasses

import core_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from more import later
from t5x_like.nn.cores.chunked import Chunked
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.cores.local import Local
from t5x_like.nn.dims import Dropout
from t5x_like.nn.mask import Mask, positions
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules


@pytest.mark.parametrize(
  "spec, kind",
  [
    ("dense", "causal"),
    ("local", "causal_w5"),
    ({"name": "bigbird", "block": 2, "random_blocks": 1}, "full"),
  ],
)
def test_weights_are_kept_in_the_dtype_of_the_values(spec, kind):
  q, k, v = (x.astype(jnp.bfloat16) for x in cases.qkv())
  core = cases.make(spec)

  def run(q, k, v):
    return core(q, k, v, cases.mask(kind), scale=0.4)

  residuals = jax.tree.leaves(jax.eval_shape(lambda *qkv: jax.vjp(run, *qkv)[1], q, k, v))
  assert not [x.shape for x in residuals if x.dtype == jnp.float32 and x.ndim > 3]


# Chunked

# mask, aligned, bias, softcap, kv heads; every kind of mask, each with another bias and grouping
GRID = [
  ("full", True, "none", None, 1),
  ("padded", False, "table", 2.0, 2),
  ("causal", True, "alibi_layer", None, 4),
  ("prefix", True, "table", 2.0, 1),
  ("packed", True, "table", None, 2),
  ("packed_causal", False, "alibi_layer", 2.0, 4),
  ("packed_causal", True, "table", 2.0, 2),
  ("causal_w5", True, "table", 2.0, 2),
  ("causal_w5", False, "none", None, 2),
  ("packed_w6", True, "alibi_layer", None, 1),
]


@pytest.mark.parametrize("kind, aligned, bias, softcap, kv_heads", GRID)
def test_chunked_equals_dense(kind, aligned, bias, softcap, kv_heads):
  args = (*cases.qkv(K=kv_heads), *cases.bias(bias))
  core = Chunked(query_chunk=8, key_chunk=10)  # 37 tokens are a multiple of neither
  mask = dataclasses.replace(cases.mask(kind), aligned=aligned)
  cases.assert_equals_dense(core, mask, args, softcap=softcap)


@pytest.mark.parametrize(
  "name", ["chunked", "splash", later("short"), later("fused"), later("ring")]
)
def test_values_may_be_narrower_than_keys(name):
  """As those of latent attention are; a core that pads them cuts the result."""
  q, k, v = cases.qkv(K=4)
  args = (q, k, v[..., :5], None, None)
  mask = dataclasses.replace(cases.mask("packed_causal"), aligned=True)
  mask = dataclasses.replace(mask, k_valid=None)
  cases.assert_equals_dense(cases.make(name), mask, args, mask.q_segments > 0)


def test_a_query_that_sees_nothing_gets_zeros():
  q, k, v = cases.qkv()
  mask = Mask(positions(37), positions(37) + 9, causal=True)
  out = jax.jit(lambda *qkv: Chunked(query_chunk=8, key_chunk=10)(*qkv, mask, scale=0.4))(q, k, v)
  assert not out[:, :9].any() and np.abs(out[:, 9:]).min(-1).all()


@pytest.mark.parametrize("kind", ["causal", "causal_w5", "full_w5", "packed", "packed_causal"])
def test_chunked_does_not_compute_hidden_blocks(kind):
  """Zero times NaN is NaN: values of keys that no query of its block sees must not get into a
  query."""
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
    # queries and heads ask for the same mesh axis
    later((dict(data=2, tensor=4), 2, "full", {"length": "tensor"})),
    later((dict(tensor=8), 2, "full", {})),  # four heads do not divide: left whole
  ],
)
def test_chunked_on_a_mesh_equals_one_device(mesh, kv_heads, kind, changes):
  mask = dataclasses.replace(cases.mask(kind), aligned=True)
  mask = jax.tree.map(lambda x: x[:, :36], mask)
  args = (*cases.qkv(T=36, K=kv_heads), *cases.bias("table"))
  options = dict(dropout=Dropout(0.2), key=jax.random.key(3))

  def run():
    return cases.with_gradients(
      Chunked(query_chunk=5, key_chunk=8), mask, cases.sees_a_key(mask), **options
    )(*args)

  expected = run()
  with Rules.make(make_mesh(mesh), changes).activate():
    actual = run()
  for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(a, e, rtol=2e-4, atol=3e-5)


@pytest.mark.parametrize("chunks", [(64, 64), (1, 7), (37, 1)])
def test_chunked_of_any_size(chunks):
  core = Chunked(query_chunk=chunks[0], key_chunk=chunks[1])
  cases.assert_equals_dense(core, cases.mask("causal"), (*cases.qkv(), *cases.bias("table")))


def test_chunked_cross_attention_and_cache():
  """Queries and keys of different lengths, positions explicit, empty slots of a cache."""
  args = (*cases.qkv(T=5, S=23), None, None)
  k_pos = jnp.asarray(np.where(np.arange(23) < 14, np.arange(23), -1)[None], jnp.int32)
  mask = Mask(positions(5) + 9, k_pos, k_valid=jnp.broadcast_to(k_pos >= 0, (2, 23)), causal=True)
  core = Chunked(query_chunk=2, key_chunk=4)
  assert core.for_decoding() is core
  cases.assert_equals_dense(core, mask, args)


def test_chunked_bfloat16():
  q, k, v = (x.astype(jnp.bfloat16) for x in cases.qkv())
  mask = cases.mask("causal")
  out = jax.jit(lambda *qkv: Chunked(query_chunk=8, key_chunk=8)(*qkv, mask, scale=0.4))(q, k, v)
  assert out.dtype == jnp.bfloat16
  exact = Dense()(*(x.astype(jnp.float32) for x in (q, k, v)), mask, scale=0.4)
  assert float(jnp.abs(out.astype(jnp.float32) - exact).max()) < 0.03


@pytest.mark.parametrize("shared", [later(False), True])
def test_chunked_dropout(shared):
  """The same mask however queries are cut and in both passes; unbiased."""
  q, k, v = cases.qkv()
  cotangent = jnp.asarray(cases.normal(*q.shape, seed=30))

  half = jax.random.key(2)

  def run(q, k, v, key=half, chunk=8, rate=0.5):
    core = Chunked(query_chunk=chunk, key_chunk=10)
    return core(
      q,
      k,
      v,
      cases.mask("causal"),
      scale=0.4,
      dropout=Dropout(rate, (-2,) if shared else ()),
      key=key,
    )

  out = jax.jit(run)(q, k, v)
  np.testing.assert_allclose(
    out, jax.jit(lambda *a: run(*a, chunk=37))(q, k, v), rtol=1e-4, atol=1e-5
  )

  def apart(*args):
    return jnp.vdot(run(*args), cotangent)

  loss = jax.jit(apart)
  dq, dk, dv = jax.jit(jax.grad(apart, argnums=(0, 1, 2)))(q, k, v)
  np.testing.assert_allclose(jnp.vdot(dv, v), loss(q, k, v), rtol=1e-3, atol=1e-3)  # linear in v
  # A central difference in q and k, which holds only if both passes drop the same weights.
  to_q, to_k = (jnp.asarray(cases.normal(*x.shape, seed=31 + i)) for i, x in enumerate((q, k)))
  ahead, behind = (loss(q + step * to_q, k + step * to_k, v) for step in (5e-3, -5e-3))
  np.testing.assert_allclose(
    jnp.vdot(dq, to_q) + jnp.vdot(dk, to_k), (ahead - behind) / 1e-2, rtol=2e-2
  )
  keys = jax.random.split(jax.random.key(0), 256)
  draws = jax.jit(jax.vmap(lambda key: run(q, k, v, key=key, chunk=37, rate=0.2)))(keys)
  error = jnp.abs(draws.mean(0) - run(q, k, v, key=None))
  assert float(error.max()) < 6 * float(draws.std(0).max()) / 16 and float(draws.std(0).max()) > 0.1


def temporary_bytes(core, T, bias=None, layers=None):
  """Of the compiled forward and backward pass on one row of T tokens, through a scanned stack if
  there are `layers`."""
  shapes = [jax.ShapeDtypeStruct((1, T, heads, 8), jnp.float32) for heads in (2, 1, 1)]
  mask = Mask(positions(T), positions(T), causal=True, aligned=True)

  def attend(q, k, v):
    return core(q, k, v, mask, bias, None, scale=0.4)

  def stack(q, k, v):
    layer = jax.checkpoint(lambda q: attend(q, k, v))
    return jax.lax.scan(lambda q, _: (layer(q), None), q, length=layers)[0]

  run = jax.grad(
    lambda q, k, v: jnp.sum((stack if layers else attend)(q, k, v) ** 2), argnums=(0, 1, 2)
  )
  return jax.jit(run).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("layers", [None, 2])
def test_chunked_memory_grows_linearly(layers):
  """Also in a stack, whose layers share masks and biases: these are not computed for all blocks
  before the stack."""
  bias = cases.bias("table", N=2)[0]
  core = Chunked(query_chunk=64, key_chunk=64)
  small, large = (temporary_bytes(core, T, bias, layers) for T in (2048, 8192))
  assert large < 4.2 * small
  assert large - small < 200 * 8 * (8192 - 2048)  # bytes: some dozens of floats for each token
  dense_small, dense_large = (temporary_bytes(Dense(), T) for T in (512, 2048))
  assert dense_large > 11 * dense_small  # what it is measured against is quadratic


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


def test_the_narrower_of_two_windows_holds():
  q, k, v = cases.qkv()
  for core_window, mask_window in ((4, None), (4, 9), (9, 4)):
    mask = cases.mask("causal" if mask_window is None else f"causal_w{mask_window}")
    out = jax.jit(lambda *qkv: Local(window=core_window)(*qkv, mask, scale=0.4))(q, k, v)
    expected = Dense()(q, k, v, cases.mask("causal_w4"), scale=0.4)
    rows = cases.sees_a_key(cases.mask("causal_w4"))[:, :, None, None]
    np.testing.assert_allclose(
      jnp.where(rows, out, 0), jnp.where(rows, expected, 0), rtol=1e-4, atol=1e-5
    )


def test_local_decodes_under_its_own_window():
  q, k, v = cases.qkv()
  core = Local(window=4)
  full = jax.jit(lambda *qkv: core(*qkv, cases.mask("causal"), scale=0.4))(q, k, v)
  decode = jax.jit(lambda mask, *qkv: core.for_decoding()(*qkv, mask, scale=0.4))
  for t in (0, 3, 20):
    last = Mask(
      positions(37)[:, t : t + 1], positions(37), k_valid=cases.mask("causal").k_valid, causal=True
    )
    step = decode(last, q[:, t : t + 1], k, v)
    np.testing.assert_allclose(step[:, 0], full[:, t], rtol=1e-4, atol=1e-5)


def test_packed_rows_equal_each_sequence_alone():
  q, k, v = cases.qkv()
  for core in (Local(window=4), Chunked(query_chunk=8, key_chunk=8)):
    run = jax.jit(lambda mask, *qkv: core(*qkv, mask, scale=0.4))
    out = run(cases.mask("packed"), q, k, v)
    alone = run(Mask(positions(9), positions(9)), *(x[:1, 11:20] for x in (q, k, v)))
    np.testing.assert_allclose(out[:1, 11:20], alone, rtol=1e-4, atol=1e-5)


def test_local_dropout_keeps_the_expectation():
  q, k, v = cases.qkv()
  mask = cases.mask("causal_w6")

  def attend(key):
    return Local()(q, k, v, mask, scale=0.4, dropout=Dropout(0.2), key=key)

  out = jax.jit(jax.vmap(attend))(jax.random.split(jax.random.key(0), 256))
  rows = cases.sees_a_key(mask)
  error = jnp.abs(out.mean(0) - jax.jit(lambda: attend(None))())[rows]
  assert (
    float(error.max()) < 6 * float(out.std(0)[rows].max()) / 16 and float(out.std(0).max()) > 0.1
  )


def test_the_backward_pass_runs_inside_remat_scan_and_vmap():
  q, k, v = cases.qkv()
  core = Chunked(query_chunk=8, key_chunk=8)

  def gradient(core):
    def loss(q):
      body = jax.checkpoint(lambda x, _: (core(x, k, v, cases.mask("causal"), scale=0.4), None))
      return jnp.sum(jax.lax.scan(body, q, None, length=2)[0] ** 2)

    return jax.vmap(jax.grad(loss))

  both = jnp.stack([q, 2 * q])
  np.testing.assert_allclose(
    jax.jit(gradient(core))(both), jax.jit(gradient(Dense()))(both), rtol=1e-3, atol=1e-5
  )
