"""Norms, dropout, masks, the dense core, residuals and parameters equal their definitions."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.block import Block, Residual
from t5x_like.nn.convolution import GroupNorm
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.dims import Dims, Dropout, dropout_mask, subkey
from t5x_like.nn.embed import Embed
from t5x_like.nn.feed_forward import gelu
from t5x_like.nn.feed_forward.mlp import Mlp
from t5x_like.nn.mask import Mask, positions
from t5x_like.nn.norm import LayerNorm, RMSNorm

dense = Dense()


def normal(*shape, seed=0, scale=1.0):
  return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def rngs():
  return nnx.Rngs(params=jax.random.key(0))


# Norm


def test_rms_norm_equals_its_formula():
  norm = params.with_arrays(RMSNorm(8, rngs()), {"scale": jnp.asarray(normal(8))})
  x = 3.0 + normal(2, 5, 8, seed=1)
  x64 = x.astype(np.float64)
  expected = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + 1e-6) * normal(8)
  np.testing.assert_allclose(norm(x), expected, rtol=1e-5, atol=1e-6)
  assert norm(jnp.zeros((1, 1, 8))).tolist() == np.zeros((1, 1, 8)).tolist()


def test_rms_norm_statistics_are_float32():
  norm = RMSNorm(4096, rngs())
  # the sum of squares in bfloat16 would be far off
  out = norm(jnp.full((1, 1, 4096), 300.0, jnp.bfloat16))
  assert out.dtype == jnp.bfloat16
  assert float(jnp.abs(out - 1).max()) < 4e-3


# Dropout


def test_dropout_without_a_key_or_rate_is_the_identity():
  x = jnp.asarray(normal(2, 3, 4))
  assert Dropout(0.5)(x, None) is x
  assert Dropout(0.0)(x, jax.random.key(0)) is x
  assert subkey(None, 3) is None


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("width", [512, 511])
def test_dropout_keeps_the_expectation_in_every_place_or_shares_its_mask_along_the_length(
  shared, width
):
  x = jnp.ones((64, 7, width))
  y = np.asarray(Dropout(0.1, (-2,) if shared else ())(x, jax.random.key(3)))
  values = np.unique(y)
  np.testing.assert_allclose(values, [0.0, 1 / 0.9], rtol=1e-4)
  keep = y > 0
  assert (y == y[:, :1]).all() == shared
  if shared:
    keep = keep[:, 0]  # one mask for all positions
  else:  # neighbours, which share random bits, and positions do not agree more often than chance
    for first, second in ((keep[..., :-1], keep[..., 1:]), (keep[:, :-1], keep[:, 1:])):
      assert abs((first == second).mean() - 0.82) < 5 * np.sqrt(0.82 * 0.18 / first.size)
  deviation = np.sqrt(0.9 * 0.1 / keep.size)
  assert abs(keep.mean() - 0.9) < 4 * deviation
  assert (keep[0] != keep[1]).any()  # rows differ


def test_dropout_gradient_is_its_own_mask():
  x = jnp.asarray(normal(4, 5, 6))
  key = jax.random.key(1)
  y = Dropout(0.5)(x, key)
  g = jax.grad(lambda x: Dropout(0.5)(x, key).sum())(x)
  np.testing.assert_allclose(y, g * x, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_dropout_keeps_the_dtype(dtype):
  assert Dropout(0.5)(jnp.ones((2, 3, 4), dtype), jax.random.key(0)).dtype == dtype


def test_subkeys_differ():
  keys = [jax.random.key_data(subkey(jax.random.key(0), i)).tolist() for i in range(10)]
  assert len({tuple(k) for k in keys}) == 10


# Mask


def test_a_mask_combines_causality_segments_and_windows():
  q = np.array([[0, 1, 0]], np.int32)
  k = np.array([[0, 1, 0, 1]], np.int32)
  q_seg = np.array([[1, 1, 2]], np.int32)
  k_seg = np.array([[1, 1, 2, 2]], np.int32)
  valid = np.array([[True, True, False, True]])
  mask = Mask(*map(jnp.asarray, (q, k, q_seg, k_seg, valid)), causal=True).dense()
  assert mask.shape == (1, 1, 3, 4)
  for t, s in np.ndindex(3, 4):
    assert bool(mask[0, 0, t, s]) == (
      k[0, s] <= q[0, t] and q_seg[0, t] == k_seg[0, s] and valid[0, s]
    ), (t, s)
  assert Mask(positions(3), positions(3)).dense() is None
  assert (
    Mask(positions(3), positions(3), causal=True).dense()[0, 0].tolist()
    == np.tri(3, dtype=bool).tolist()
  )


# Dense core


def attention_reference(q, k, v, allowed, bias, scale):
  B, T, N, H = q.shape
  repeat = N // k.shape[2]
  k = np.repeat(k.astype(np.float64), repeat, axis=2)
  v = np.repeat(v.astype(np.float64), repeat, axis=2)
  logits = np.einsum("btnh,bsnh->bnts", q.astype(np.float64) * scale, k) + (
    0 if bias is None else bias
  )
  logits = np.where(allowed, logits, -np.inf)
  p = np.exp(logits - logits.max(-1, keepdims=True))
  return np.einsum("bnts,bsnh->btnh", p / p.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("biased", [False, True])
def test_the_dense_core_equals_its_formula(kv_heads, biased):
  q = normal(2, 5, 6, 8)
  k = normal(2, 7, kv_heads, 8, seed=1)
  v = normal(2, 7, kv_heads, 8, seed=2)
  bias = normal(1, 6, 5, 7, seed=3) if biased else None
  valid = np.arange(7)[None] < np.array([[7], [4]])
  q_pos = positions(5) + 2
  k_pos = positions(7)
  allowed = valid[:, None, None] & (
    np.asarray(k_pos)[:, None, None] <= np.asarray(q_pos)[:, None, :, None]
  )
  mask = Mask(q_pos, k_pos, k_valid=jnp.asarray(valid), causal=True)
  out = dense(
    *map(jnp.asarray, (q, k, v)), mask, bias if bias is None else jnp.asarray(bias), scale=0.5
  )
  np.testing.assert_allclose(
    out, attention_reference(q, k, v, allowed, bias, 0.5), rtol=2e-5, atol=2e-5
  )


def test_dense_core_is_finite_without_any_visible_key():
  q = jnp.asarray(normal(1, 3, 2, 4, seed=0))
  k = jnp.asarray(normal(1, 3, 2, 4, seed=1))
  v = jnp.asarray(normal(1, 3, 2, 4, seed=2))
  mask = Mask(positions(3), positions(3), k_valid=jnp.zeros((1, 3), bool))
  out, gradient = jax.value_and_grad(lambda q: dense(q, k, v, mask, None, scale=1.0).sum())(q)
  assert np.isfinite(out)
  assert (np.asarray(gradient) == 0).all()


def test_dense_core_softmax_is_float32_in_bfloat16():
  q = normal(1, 4, 1, 16, seed=0)
  k = normal(1, 4, 1, 16, seed=1)
  v = normal(1, 4, 1, 16, seed=2)
  low = [jnp.asarray(a, jnp.bfloat16) for a in (q, k, v)]
  out = dense(*low, Mask(positions(4), positions(4)), None, scale=1.0)
  expected = attention_reference(*(np.asarray(a, np.float64) for a in low), True, None, 1.0)
  assert out.dtype == jnp.bfloat16
  np.testing.assert_allclose(np.asarray(out, np.float64), expected, atol=2e-2)


# Blocks


class Double(nnx.Module):
  def __call__(self, x, context, cache, key):
    return 2 * x, {"balance": jnp.float32(1.5)}, cache


class Add(nnx.Module):
  def __init__(self, n):
    self.n = n

  def __call__(self, x):
    return x + self.n


def test_residual_places_norms_where_its_equation_says():
  x = jnp.asarray(normal(1, 2, 3))
  full = Residual(Double(), in_norm=Add(1.0), res_norm=Add(10.0), out_norm=Add(100.0), alpha=3.0)
  np.testing.assert_allclose(
    full(x, None, None, None)[0], 100 + 3 * x + (10 + 2 * (x + 1)), rtol=1e-6
  )
  np.testing.assert_allclose(Residual(Double())(x, None, None, None)[0], 3 * x)


def test_block_applies_sublayers_in_order_and_adds_their_losses():
  block = Block(first=Residual(Double()), second=Residual(Double(), alpha=0.0))
  y, aux, cache = block(jnp.ones((1, 1, 1)), None, {"first": {"k": 1}, "second": None}, None)
  assert y.item() == 6.0
  assert cache == {"first": {"k": 1}, "second": None}
  assert {n: float(a) for n, a in aux.items()} == {"balance": 3.0}


@pytest.mark.parametrize("gated", [False, True])
def test_an_mlp_equals_its_formula(gated):
  mlp = Mlp(4, 6, rngs(), activation=jax.nn.relu, gated=gated)
  w = {n: np.asarray(a, np.float64) for n, a in params.arrays(mlp).items()}
  x = normal(2, 3, 4)
  h = x @ w["wi/kernel"]
  h = np.maximum(x @ w["gate/kernel"], 0) * h if gated else np.maximum(h, 0)
  np.testing.assert_allclose(mlp(x, None, None, None)[0], h @ w["wo/kernel"], rtol=1e-5, atol=1e-6)


def test_embed_reads_rows():
  embed = Embed(10, 4, rngs(), init=params.normal(1.0))
  table = np.asarray(embed.table[...])
  ids = np.array([[3, 0, 9]], np.int32)
  np.testing.assert_array_equal(embed(ids, jnp.float32), table[ids])


# Parameters and sizes


def test_parameters_are_named_replaced_and_counted():
  mlp = Mlp(4, 6, rngs(), activation=jax.nn.relu, gated=True)
  named = params.named_params(mlp)
  assert {n: p.axes for n, p in named.items()} == {
    "gate/kernel": ("embed", "mlp"),
    "wi/kernel": ("embed", "mlp"),
    "wo/kernel": ("mlp", "embed"),
  }
  assert params.count(mlp) == 72 == params.count(jax.eval_shape(lambda: mlp))
  new_arrays = {n: jnp.full(p.shape, i, jnp.float32) for i, (n, p) in enumerate(named.items())}
  replaced = params.with_arrays(jax.eval_shape(lambda: mlp), new_arrays)
  assert all((params.arrays(replaced)[n] == a).all() for n, a in new_arrays.items())
  assert {n: p.axes for n, p in params.named_params(replaced).items()} == {
    n: p.axes for n, p in named.items()
  }


def test_parameters_are_drawn_with_the_stated_deviation_and_independently():
  source = rngs()
  a = params.param(source, params.fan_in_normal(64, gain=0.5), (64, 512), (None, None))[...]
  b = params.param(source, params.fan_in_normal(64, gain=0.5), (64, 512), (None, None))[...]
  assert abs(float(a.std()) - 0.5 / 8) < 1e-3
  assert abs(float((a * b).mean())) < 1e-4


def test_sizes_that_do_not_fit_are_refused():
  with pytest.raises(ValueError, match="heads=6 must be a multiple of kv_heads=4"):
    Dims(embed=8, heads=6, kv_heads=4, head_dim=2, mlp=8, layers=1)
  with pytest.raises(ValueError, match="logical axes"):
    params.param(rngs(), params.ones, (2, 3), ("embed",))


@pytest.mark.parametrize("shape", [(4, 6, 8), (4, 1, 8), (3, 5), (7,), (2, 1, 1), (200, 300)])
def test_dropout_draws_no_array_of_pairs(shape):
  """Every array of the drawing but its two seeds has the shape's axes: a TPU pads a last axis of
  two to 128 lanes."""

  def draw(key):
    return dropout_mask(key, 0.25, shape)[0]

  jaxpr = jax.make_jaxpr(draw)(jax.random.key(0))
  arrays = [
    v.aval
    for equation in jaxpr.eqns
    for v in equation.outvars
    if v.aval.shape not in ((), (1,), (2,))
  ]
  assert {array.ndim for array in arrays} == {len(shape)}
  keep = draw(jax.random.key(0))
  assert keep.shape == shape
  assert keep.dtype == bool
  if keep.size > 10_000:
    assert abs(float(keep.mean()) - 0.75) < 0.01
    halves = keep[:100], keep[100:]
    assert abs(float((halves[0] == halves[1]).mean()) - (0.75**2 + 0.25**2)) < 0.02


@pytest.mark.parametrize(
  "make", [RMSNorm, LayerNorm, GroupNorm, None], ids=["rms", "layer", "group", "gelu"]
)
def test_the_backward_pass_keeps_the_input_alone(make):
  """Exactly the gradient of the plain function, from a bfloat16 array where JAX would keep several
  float32 ones."""
  arguments = () if make is None else (make(32, nnx.Rngs(params=jax.random.key(0))),)
  function = gelu if make is None else make.__call__
  x = jax.random.normal(jax.random.key(1), (4, *(2, 4)[make != GroupNorm :], 8, 32), jnp.bfloat16)
  residuals = jax.eval_shape(lambda x: jax.vjp(partial(function, *arguments), x)[1], x)
  assert (
    sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(residuals))
    <= x.nbytes + 2 * 4 * 32
  )

  def gradient(function):
    return jax.jit(jax.grad(lambda x: (function(*arguments, x).astype(jnp.float32) ** 2).sum()))(x)

  np.testing.assert_array_equal(gradient(function), gradient(function.__wrapped__))
