"""Layers prepared for decoding on a CPU have the same outputs as the trained layers."""

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
def test_layers_prepared_for_a_loop_have_the_same_outputs(dtype):
  """On a CPU, float32 fuses `wi` and `gate`; elsewhere only the dtype changes."""
  mlp = Mlp(6, 10, nnx.Rngs(0), activation=ACTIVATIONS["silu"][0], gated=True, bias=True)
  for number, linear in enumerate((mlp.wi, mlp.gate, mlp.wo)):
    linear.bias[...] = jax.random.normal(jax.random.key(number), linear.bias.shape)
  x = jax.random.normal(jax.random.key(1), (2, 1, 6), dtype)
  prepared = prepare_for_loop(mlp, jnp.dtype(dtype))
  unfused = dict(linears(prepared))
  assert unfused.keys() == ({"wo"} if dtype == "float32" else {"wi", "gate", "wo"})
  for linear in unfused.values():
    assert type(linear) is KernelFirst
    assert linear.kernel[...].dtype == dtype
  assert isinstance(prepared.wi, FusedLinear) == (dtype == "float32")
  output = prepared(x, None, None, None)[0]
  expected = mlp(x, None, None, None)[0]
  tolerance = 1e-6 if dtype == "float32" else 1e-2
  np.testing.assert_allclose(
    output.astype("float32"), expected.astype("float32"), rtol=tolerance, atol=tolerance
  )
  assert output.dtype == dtype
  with use_platform("tpu"):
    tpu_linears = [linear for _, linear in linears(prepare_for_loop(mlp, jnp.dtype(dtype)))]
  for linear in tpu_linears:
    assert type(linear) is Linear
    assert linear.kernel[...].dtype == dtype
