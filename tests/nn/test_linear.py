"""The matrix product and its hand-written gradient equal JAX's."""

import jax
import jax.numpy as jnp
import pytest

from arrays import assert_trees_close
from t5x_like.nn.linear import matmul
from t5x_like.parallel.constrain import use_platform

AXES = ("embed", "mlp")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("leading", [(), (5,), (2, 5)])
def test_product_equals_jax_in_value_gradient_and_dtype(leading, dtype):
  x = jax.random.normal(jax.random.key(0), (*leading, 6), dtype)
  kernel = jax.random.normal(jax.random.key(1), (6, 4), dtype)

  def output_and_gradients(product):
    def run(x, kernel):
      out, back = jax.vjp(product, x, kernel)
      return out, *back(jnp.cos(out))

    return jax.jit(run)(x, kernel)

  # In bfloat16 both round their sums once, but add in another order.
  tolerance = 1e-5 if dtype == "float32" else 2e-2
  actual = output_and_gradients(lambda x, w: matmul(x, w, dtype, AXES))
  expected = output_and_gradients(lambda x, w: x @ w)
  assert [a.dtype for a in actual] == [e.dtype for e in expected]
  actual, expected = jax.tree.map(lambda a: a.astype("float32"), (actual, expected))
  assert_trees_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_product_accumulates_and_returns_the_requested_dtype():
  x = jnp.full((1, 4096), 1 / 64, "bfloat16")
  kernel = jnp.full((4096, 1), 1 + 1 / 128, "bfloat16")
  assert matmul(x, kernel, jnp.float32, AXES).tolist() == [[64.5]]


def test_gradient_of_the_kernel_is_one_product_without_transposes():
  def loss(w, x):
    return matmul(x, w, jnp.float32, AXES).sum()

  gradient = jax.make_jaxpr(jax.grad(loss))(jnp.ones((3, 4)), jnp.ones((2, 3)))
  assert "transpose" not in str(gradient)


@pytest.mark.parametrize("platform, dtype", [("cpu", "float32"), ("tpu", "bfloat16")])
def test_bfloat16_is_multiplied_in_the_fast_dtype_of_the_platform(platform, dtype):
  x = jnp.ones((2, 2), "bfloat16")
  with use_platform(platform):
    program = jax.make_jaxpr(lambda x, w: matmul(x, w, jnp.bfloat16, AXES))(x, x)
  assert f"preferred_element_type={dtype}" in str(program)


@pytest.mark.parametrize("several_x", [False, True])
def test_bfloat16_has_gradients_under_vmap(several_x):
  """A pipeline maps over its stages."""
  x = jnp.ones((2, 16, 8) if several_x else (16, 8), "bfloat16")
  kernels = jnp.full((2, 8, 4), 2.0)
  in_axes = (0 if several_x else None, 0)
  stages = jax.vmap(lambda x, w: matmul(x, w, jnp.bfloat16, AXES), in_axes)
  gradient = jax.jit(jax.grad(lambda w: stages(x, w).sum()))(kernels)
  assert gradient.shape == kernels.shape
  assert (gradient == 16).all()
