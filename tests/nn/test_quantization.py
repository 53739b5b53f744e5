"""Products of 8-bit factors are within the bound of rounding, also on meshes and in runs."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import tiny
from refusals import refuses
from t5x_like import train
from t5x_like.architectures.design import Design
from t5x_like.decoding.cpu import prepare_for_loop
from t5x_like.nn import params
from t5x_like.nn.feed_forward import Experts
from t5x_like.nn.linear import Linear, matmul
from t5x_like.nn.quantization import fp8, int8
from t5x_like.nn.quantization._scaled import ScaledProduct, round_to_8_bits
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.report.writer import read_metrics
from tests.runs import hide_other_devices

AXES = ("embed", "mlp")
KINDS = {"int8": int8, "fp8": fp8}
PRODUCTS = {name: kind.make().args[0] for name, kind in KINDS.items()}
# The largest rounding error of each dtype: (a share of the scale, a share of the value).
HALF_STEPS = {
  "int8": (0.5, 0.0),
  "float8_e4m3fn": (2**-10, 2**-4),
  "float8_e5m2": (2**-17, 2**-3),
}


def draw_factors(dtype=jnp.float32):
  """Return `x` [3, 5, 64] with rows of several scales, a kernel [64, 24], a gradient [3, 5, 24]."""
  generator = np.random.default_rng(0)
  sizes = 10.0 ** generator.integers(-3, 3, (3, 5, 1))
  x = generator.standard_normal((3, 5, 64))
  kernel = generator.standard_normal((64, 24))
  g = generator.standard_normal((3, 5, 24))
  return jnp.asarray(x * sizes, dtype), jnp.asarray(kernel, jnp.float32), jnp.asarray(g, dtype)


def output_and_gradients(multiply, x, kernel, g):
  y, back = jax.vjp(lambda x, kernel: multiply(x, kernel, x.dtype, AXES), x, kernel)
  return y, *back(g)


def rounding_error_bound(a, b, axis_a, axis_b, dtype_a, dtype_b):
  """Return the bound of the error of a matrix product whose factors are rounded to 8 bits."""

  def error(x, axis, dtype):
    scale_share, value_share = HALF_STEPS[dtype]
    scale = np.asarray(round_to_8_bits(jnp.asarray(x), (axis,), dtype)[1])
    return 1.001 * np.maximum(scale_share * scale, value_share * np.abs(x))

  a = np.moveaxis(np.asarray(a, np.float64), axis_a, 1)
  b = np.moveaxis(np.asarray(b, np.float64), axis_b, 0)
  error_a = error(a, 1, dtype_a)
  error_b = error(b, 0, dtype_b)
  a = np.abs(a)
  b = np.abs(b)
  return a @ error_b + error_a @ b + error_a @ error_b + 1e-5 * (a @ b)


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_within_the_bound_of_rounding(kind):
  x, kernel, g = draw_factors()
  product = PRODUCTS[kind]
  actual, exact = jax.jit(
    lambda *f: (output_and_gradients(product, *f), output_and_gradients(matmul, *f))
  )(x, kernel, g)
  flat_x = x.reshape(15, 64)
  flat_g = g.reshape(15, 24)
  factor = product.factors
  gradient = product.gradients
  bounds = [
    rounding_error_bound(flat_x, kernel, 1, 0, factor, factor),
    rounding_error_bound(flat_g, kernel, 1, 1, gradient, factor),
    1e-5 * (np.abs(flat_x).T @ np.abs(flat_g)),
  ]
  if product.rounds_kernel_gradient:
    bounds[2] = rounding_error_bound(flat_x, flat_g, 0, 0, factor, gradient)
  for rounded, reference, bound in zip(actual, exact, bounds, strict=True):
    error = np.abs(np.asarray(rounded, np.float64) - np.asarray(reference, np.float64))
    assert (error.reshape(bound.shape) <= bound).all()
    assert error.max() > 0 or not product.rounds_kernel_gradient
    assert rounded.dtype == reference.dtype


@pytest.mark.parametrize("kind", KINDS)
def test_rows_do_not_depend_on_each_other(kind):
  """Causality, packing and decoding therefore work as without rounding."""
  x, kernel, g = draw_factors(jnp.bfloat16)
  run = jax.jit(lambda x, g: output_and_gradients(PRODUCTS[kind], x, kernel, g)[:2])
  row_factors = jnp.asarray([1.0, 1e6, 0.0], x.dtype)[:, None, None]
  for actual, expected in zip(run(x * row_factors, g * row_factors), run(x, g), strict=True):
    assert (actual[0] == expected[0]).all()
    assert (actual[2] == 0).all()


def test_non_finite_values_remain_non_finite():
  _, kernel, g = draw_factors()
  run = jax.jit(lambda x: output_and_gradients(PRODUCTS["int8"], x, kernel, g)[0])
  for value in (jnp.nan, jnp.inf):
    assert not np.isfinite(run(jnp.full((3, 5, 64), value))).any()


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
@pytest.mark.parametrize(
  "kind, operands", [("int8", {"i8xi8": 2}), ("fp8", {"E4xE4": 1, "E5xE4": 1, "E4xE5": 1})]
)
def test_programs_multiply_8_bit_factors(kind, operands, platform):
  x, kernel, g = draw_factors(jnp.bfloat16)
  step = jax.jit(lambda *draw_factors: output_and_gradients(PRODUCTS[kind], *draw_factors))
  text = step.trace(x, kernel, g).lower(lowering_platforms=(platform,)).as_text()
  matches = re.findall(r"dot_general.*tensor<\S*?x(i8|f8E[45])\S*, tensor<\S*?x(i8|f8E[45])", text)
  pairs = ["x".join(name.removeprefix("f8") for name in pair) for pair in matches]
  assert {pair: pairs.count(pair) for pair in pairs} == operands


@pytest.mark.parametrize("kind", KINDS)
def test_products_of_experts_equal_separate_products(kind):
  rows = jax.random.normal(jax.random.key(0), (2, 3, 4, 16))
  kernels = jax.random.normal(jax.random.key(1), (2, 16, 8))
  g = jax.random.normal(jax.random.key(2), (2, 3, 4, 8))

  def experts(rows, kernels):
    return PRODUCTS[kind].experts(rows, kernels, ("expert", "embed", "mlp"))

  def separate(rows, kernels):
    products = [PRODUCTS[kind](r, k, r.dtype, AXES) for r, k in zip(rows, kernels, strict=True)]
    return jnp.stack(products)

  def both_products(rows, kernels, g):
    return [(f(rows, kernels), *jax.vjp(f, rows, kernels)[1](g)) for f in (experts, separate)]

  for actual, expected in zip(*jax.jit(both_products)(rows, kernels, g), strict=True):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_quantization_of_dropless_experts_is_refused():
  design = Design(quantization="int8", experts=Experts(dispatch="dropless"))
  size = dataclasses.replace(tiny.sizes(), design=design)
  with refuses("design.quantization: found int8 factors", "'dropless'"):
    tiny.abstract(size)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
  "shape", [{"fsdp": 4}, pytest.param({"fsdp": 2, "tensor": 2}, marks=pytest.mark.more)]
)
def test_products_on_a_mesh_equal_one_device(kind, shape):
  """Kernels are gathered in 8 bits.

  For fp8, each device rounds gradients of kernels by the scales of its tokens, so they differ more.
  """
  rules = Rules.make(make_mesh(shape, jax.devices()[:4]))
  x = jax.random.normal(jax.random.key(0), (8, 4, 16), jnp.bfloat16)
  g = jax.random.normal(jax.random.key(1), (8, 4, 32), jnp.bfloat16)
  kernel = jax.random.normal(jax.random.key(2), (16, 32))

  def run(x, kernel, g):
    with rules.activate():
      return output_and_gradients(PRODUCTS[kind], x, kernel, g)

  rows = rules.sharding(("batch",))
  placed = jax.device_put((x, kernel, g), (rows, rules.sharding(AXES), rows))
  program = jax.jit(run).lower(*placed).compile()
  gathers = re.findall(r"= (\w+)\[[\d,]+\]\S* all-gather\(", program.as_text())
  # XLA on CPU widens 8-bit floats to float16.
  assert {"int8": "s8", "fp8": "f16"}[kind] in gathers
  assert "bf16" not in gathers
  on_one_device = jax.jit(
    lambda *draw_factors: output_and_gradients(PRODUCTS[kind], *draw_factors)
  )(x, kernel, g)
  limits = (1e-2, 1e-2, 0.1)
  for sharded, expected, limit in zip(program(*placed), on_one_device, limits, strict=True):
    expected = np.asarray(expected, np.float32)
    difference = np.asarray(sharded, np.float32) - expected
    assert np.linalg.norm(difference) <= limit * np.linalg.norm(expected)


def test_decoding_multiplies_8_bit_factors():
  linear = Linear((8, 4), AXES, params.normal(1.0), nnx.Rngs(0))
  linear.multiply = PRODUCTS["int8"]
  prepared = prepare_for_loop(nnx.List([linear]), jnp.bfloat16)
  assert isinstance(PRODUCTS["int8"], ScaledProduct)
  assert type(prepared[0]) is Linear
  assert prepared[0].multiply is linear.multiply


@pytest.mark.more
def test_resumed_run_can_switch_to_quantization(tmp_path, capsys):
  flags = ["--config=tests/recipes/nano.py", f"--workdir={tmp_path}"]
  with hide_other_devices():
    assert train.main([*flags, "--config.total_steps=2"]) == 0
    arguments = [*flags, "--config.total_steps=4", "--config.model.design.quantization=int8"]
    assert train.main(arguments) == 0
  assert "resuming with a changed config: model.design" in capsys.readouterr().out
  assert [row["step"] for row in read_metrics(tmp_path) if "train/loss" in row] == [1, 2, 3, 4]
