"""Layers as decoding on a CPU runs them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_like.decoding.cpu import FusedLinear, KernelFirst, prepare_for_loop
from t5x_like.nn.feed_forward import ACTIVATIONS
from t5x_like.nn.feed_forward.mlp import Mlp
from t5x_like.nn.linear import Linear, linears
from t5x_like.parallel.constrain import use_platform


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layers_held_for_decoding_compute_the_same(dtype):
  made = Mlp(6, 10, nnx.Rngs(0), activation=ACTIVATIONS["silu"][0], gated=True, bias=True)
  for number, linear in enumerate((made.wi, made.gate, made.wo)):
    linear.bias[...] = jax.random.normal(jax.random.key(number), linear.bias.shape)
  x = jax.random.normal(jax.random.key(1), (2, 1, 6), dtype)
  held = prepare_for_loop(made, jnp.dtype(dtype))
  alone = dict(linears(held))
  assert alone.keys() == ({"wo"} if dtype == "float32" else {"wi", "gate", "wo"})
  assert all(
    type(linear) is KernelFirst and linear.kernel[...].dtype == dtype for linear in alone.values()
  )
  assert isinstance(held.wi, FusedLinear) == (dtype == "float32")
  (got, *_), (expected, *_) = held(x, None, None, None), made(x, None, None, None)
  tolerance = 1e-6 if dtype == "float32" else 1e-2
  np.testing.assert_allclose(
    got.astype("float32"), expected.astype("float32"), rtol=tolerance, atol=tolerance
  )
  assert got.dtype == dtype
  with use_platform("tpu"):
    elsewhere = [linear for _, linear in linears(prepare_for_loop(made, jnp.dtype(dtype)))]
  assert all(type(linear) is Linear and linear.kernel[...].dtype == dtype for linear in elsewhere)
