"""Norms, dropout, masks, the dense core, residuals and parameters follow their definitions."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from arrays import normal, rngs
from refusals import refuses
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


# Norm


def test_rms_norm_equals_its_formula():
  norm = params.with_arrays(RMSNorm(8, rngs()), {"scale": jnp.asarray(normal(8))})
  x = 3.0 + normal(2, 5, 8, seed=1)
  x64 = x.astype(np.float64)
  expected = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + 1e-6) * normal(8)
  np.testing.assert_allclose(norm(x), expected, rtol=1e-5, atol=1e-6)


def test_rms_norm_of_zeros_is_zero():
  assert not RMSNorm(8, rngs())(jnp.zeros((1, 1, 8))).any()


def test_rms_norm_statistics_are_float32():
  norm = RMSNorm(4096, rngs())
  # A sum of squares in bfloat16 would be far off.
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
def test_dropout_has_its_rate_and_its_shared_axis(shared, width):
  dropout = Dropout(0.1, (-2,) if shared else ())
  y = np.asarray(jax.jit(dropout)(jnp.ones((64, 7, width)), jax.random.key(3)))
  np.testing.assert_allclose(np.unique(y), [0.0, 1 / 0.9], rtol=1e-4)
  assert (y == y[:, :1]).all() == shared
  keep = y > 0
  if shared:
    keep = keep[:, 0]  # one mask for all positions
  deviation = np.sqrt(0.9 * 0.1 / keep.size)
  assert abs(keep.mean() - 0.9) < 4 * deviation
  assert (keep[0] != keep[1]).any()  # rows differ


@pytest.mark.parametrize("width", [512, 511])
def test_neighbours_drop_out_independently(width):
  """Neighbours share random bits, but agree as often as independent draws, along both axes."""
  keep = np.asarray(jax.jit(Dropout(0.1))(jnp.ones((64, 7, width)), jax.random.key(3))) > 0
  for first, second in ((keep[..., :-1], keep[..., 1:]), (keep[:, :-1], keep[:, 1:])):
    expected = 0.9 * 0.9 + 0.1 * 0.1
    deviation = np.sqrt(expected * (1 - expected) / first.size)
    assert abs((first == second).mean() - expected) < 5 * deviation


def test_gradient_of_dropout_is_its_mask():
  x = jnp.asarray(normal(4, 5, 6))

  @jax.jit
  def output_and_gradient(x):
    y, back = jax.vjp(lambda x: Dropout(0.5)(x, jax.random.key(1)), x)
    return y, back(jnp.ones_like(y))[0]

  y, gradient = output_and_gradient(x)
  np.testing.assert_allclose(y, gradient * x, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_dropout_keeps_the_dtype(dtype):
  x = jax.ShapeDtypeStruct((2, 3, 4), dtype)
  assert jax.eval_shape(Dropout(0.5), x, jax.random.key(0)).dtype == dtype


def test_subkeys_differ():
  keys = [jax.random.key_data(subkey(jax.random.key(0), i)).tolist() for i in range(10)]
  assert len({tuple(k) for k in keys}) == 10


# Mask


def test_mask_combines_causality_segments_and_padding():
  q = np.array([[0, 1, 0]], np.int32)
  k = np.array([[0, 1, 0, 1]], np.int32)
  q_seg = np.array([[1, 1, 2]], np.int32)
  k_seg = np.array([[1, 1, 2, 2]], np.int32)
  valid = np.array([[True, True, False, True]])
  mask = Mask(*map(jnp.asarray, (q, k, q_seg, k_seg, valid)), causal=True).dense()
  is_past = k[0] <= q[0, :, None]
  is_same_segment = k_seg[0] == q_seg[0, :, None]
  np.testing.assert_array_equal(mask, (is_past & is_same_segment & valid[0])[None, None])
  assert Mask(positions(3), positions(3)).dense() is None


# Dense core


def attention_reference(q, k, v, allowed=True, bias=0.0, scale=1.0):
  """Return attention [B, T, N, H] in float64 by its formula."""
  repeat = q.shape[2] // k.shape[2]
  q = np.asarray(q, np.float64)
  k = np.repeat(np.asarray(k, np.float64), repeat, axis=2)
  v = np.repeat(np.asarray(v, np.float64), repeat, axis=2)
  logits = np.einsum("btnh,bsnh->bnts", q * scale, k) + bias
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
  valid_BS = np.arange(7)[None] < np.array([[7], [4]])
  causal_TS = np.arange(7) <= np.arange(5)[:, None] + 2
  mask = Mask(positions(5) + 2, positions(7), k_valid=jnp.asarray(valid_BS), causal=True)
  out = jax.jit(lambda *qkv: dense(*qkv, mask, bias, scale=0.5))(q, k, v)
  allowed = valid_BS[:, None, None] & causal_TS
  expected = attention_reference(q, k, v, allowed, 0.0 if bias is None else bias, scale=0.5)
  np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-5)


def test_dense_core_is_finite_without_any_visible_key():
  q, k, v = [normal(1, 3, 2, 4, seed=seed) for seed in range(3)]
  mask = Mask(positions(3), positions(3), k_valid=jnp.zeros((1, 3), bool))

  def total(q):
    return dense(q, k, v, mask, None, scale=1.0).sum()

  out, gradient = jax.jit(jax.value_and_grad(total))(q)
  assert np.isfinite(out)
  assert (np.asarray(gradient) == 0).all()


def test_dense_core_softmax_is_float32_in_bfloat16():
  qkv = [jnp.asarray(normal(1, 4, 1, 16, seed=seed), jnp.bfloat16) for seed in range(3)]
  mask = Mask(positions(4), positions(4))
  out = jax.jit(lambda *qkv: dense(*qkv, mask, None, scale=1.0))(*qkv)
  expected = attention_reference(*qkv)
  assert out.dtype == jnp.bfloat16
  np.testing.assert_allclose(np.asarray(out, np.float64), expected, atol=2e-2)


# Blocks


class Double(nnx.Module):
  """A sublayer that returns 2 x and an auxiliary loss."""

  def __call__(self, x, context, cache, key):
    return 2 * x, {"balance": jnp.float32(1.5)}, cache


class Add(nnx.Module):
  """A stand-in for a norm, which adds a constant."""

  def __init__(self, n):
    self.n = n

  def __call__(self, x):
    return x + self.n


def test_residual_follows_its_equation():
  x = jnp.asarray(normal(1, 2, 3))
  full = Residual(Double(), in_norm=Add(1.0), res_norm=Add(10.0), out_norm=Add(100.0), alpha=3.0)
  y, _, _ = full(x, None, None, None)
  np.testing.assert_allclose(y, 100 + 3 * x + (10 + 2 * (x + 1)), rtol=1e-6)


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
  y = jax.jit(lambda x: mlp(x, None, None, None)[0])(x)
  np.testing.assert_allclose(y, h @ w["wo/kernel"], rtol=1e-5, atol=1e-6)


def test_embed_reads_rows():
  embed = Embed(10, 4, rngs(), init=params.normal(1.0))
  table = np.asarray(embed.table[...])
  ids = np.array([[3, 0, 9]], np.int32)
  np.testing.assert_array_equal(embed(ids, jnp.float32), table[ids])


# Parameters and sizes


MLP_AXES = {
  "gate/kernel": ("embed", "mlp"),
  "wi/kernel": ("embed", "mlp"),
  "wo/kernel": ("mlp", "embed"),
}


def logical_axes(module):
  return {name: param.axes for name, param in params.named_params(module).items()}


@pytest.fixture
def mlp():
  return Mlp(4, 6, rngs(), activation=jax.nn.relu, gated=True)


def test_parameters_have_names_and_logical_axes(mlp):
  assert logical_axes(mlp) == MLP_AXES


def test_parameters_are_counted_with_and_without_arrays(mlp):
  assert params.count(mlp) == 72
  assert params.count(jax.eval_shape(lambda: mlp)) == 72


def test_replaced_arrays_keep_names_and_axes(mlp):
  new_arrays = {}
  for number, (name, array) in enumerate(params.arrays(mlp).items()):
    new_arrays[name] = jnp.full(array.shape, number, jnp.float32)
  replaced = params.with_arrays(jax.eval_shape(lambda: mlp), new_arrays)
  assert logical_axes(replaced) == MLP_AXES
  for name, array in params.arrays(replaced).items():
    np.testing.assert_array_equal(array, new_arrays[name])


def test_initial_parameters_have_their_deviation_and_are_independent():
  source = rngs()
  a = params.param(source, params.fan_in_normal(64, gain=0.5), (64, 512), (None, None))[...]
  b = params.param(source, params.fan_in_normal(64, gain=0.5), (64, 512), (None, None))[...]
  assert abs(float(a.std()) - 0.5 / 8) < 1e-3
  assert abs(float((a * b).mean())) < 1e-4


def test_heads_that_are_no_multiple_of_kv_heads_are_refused():
  with refuses("heads=6", "kv_heads=4", error=ValueError):
    Dims(embed=8, heads=6, kv_heads=4, head_dim=2, mlp=8, layers=1)


def test_parameter_without_a_name_for_each_axis_is_refused():
  with refuses("logical axes", error=ValueError):
    params.param(rngs(), params.ones, (2, 3), ("embed",))


@pytest.mark.parametrize("shape", [(4, 6, 8), (4, 1, 8), (3, 5), (7,), (2, 1, 1), (200, 300)])
def test_dropout_computes_no_array_with_a_last_axis_of_two(shape):
  """A TPU pads such an axis to 128 lanes.

  All arrays of the computation have as many axes as the mask, except for the two seeds.
  """

  def draw(key):
    return dropout_mask(key, 0.25, shape)[0]

  jaxpr = jax.make_jaxpr(draw)(jax.random.key(0))
  shapes = {v.aval.shape for equation in jaxpr.eqns for v in equation.outvars}
  seeds = {(), (1,), (2,)}
  assert {len(drawn) for drawn in shapes - seeds} == {len(shape)}
  [keep] = jaxpr.out_avals
  assert keep.shape == shape
  assert keep.dtype == bool


@pytest.mark.parametrize(
  "make", [RMSNorm, LayerNorm, GroupNorm, None], ids=["rms", "layer", "group", "gelu"]
)
def test_only_the_input_is_saved_for_the_backward_pass(make):
  """The gradient equals the plain function's, for which JAX would save several float32 arrays."""
  function = gelu if make is None else make.__call__
  arguments = () if make is None else (make(32, rngs()),)
  shape = (4, 2, 4, 8, 32) if make is GroupNorm else (4, 4, 8, 32)
  x = jax.random.normal(jax.random.key(1), shape, jnp.bfloat16)
  residuals = jax.eval_shape(lambda x: jax.vjp(partial(function, *arguments), x)[1], x)
  residual_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(residuals))
  assert residual_bytes <= x.nbytes + 2 * 4 * 32

  def gradient(function):
    def loss(x):
      return (function(*arguments, x).astype(jnp.float32) ** 2).sum()

    return jax.jit(jax.grad(loss))(x)

  np.testing.assert_array_equal(gradient(function), gradient(function.__wrapped__))
