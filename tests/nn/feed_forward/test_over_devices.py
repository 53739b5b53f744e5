"""Experts without capacity exchange rows between a mesh's devices, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.dims import Dropout
from t5x_like.nn.feed_forward import Experts
from t5x_like.nn.feed_forward import _over_devices as over_devices
from t5x_like.nn.feed_forward.moe import Moe
from t5x_like.nn.layer import Context
from t5x_like.nn.mask import Mask, positions
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.planning.hlo import Program

B = 8
T = 4
D = 16
F = 8
E = 8
MESHES = (
  {"data": 2, "expert": 4},
  {"fsdp": 2, "expert": 2, "tensor": 2},
  {"expert": 2, "sequence": 2, "data": 2},
  {"data": 8},
)


def layer(top_k=2, dropout=0.0, factor=1.25):
  activation = jax.nn.silu
  init = params.normal(0.5)
  experts = Experts(experts=E, top_k=top_k, capacity_factor=factor)
  rngs = nnx.Rngs(params=jax.random.key(5))
  moe = Moe(
    D, F, rngs, experts, activation=activation, gated=True, init=init, dropout=Dropout(dropout)
  )
  return moe, params.arrays(moe)


def run(moe, arrays, x_BTD, key=None):
  """Return a loss that depends on every output, and the router's sums."""
  y_BTD, aux, _ = params.with_arrays(moe, arrays)(
    x_BTD, Context(Mask(positions(T), positions(T))), None, key
  )
  return jnp.sum(jnp.sin(y_BTD + jnp.arange(T, dtype=y_BTD.dtype)[:, None])), (y_BTD, aux)


def run_on_mesh(rules, moe, arrays, x_BTD):
  gradient = jax.value_and_grad(lambda arrays, x_BTD: run(moe, arrays, x_BTD), (0, 1), has_aux=True)
  if rules is None:
    return jax.jit(gradient)(arrays, x_BTD)
  named = params.named_params(moe)
  placed = {name: jax.device_put(x, rules.sharding(named[name].axes)) for name, x in arrays.items()}
  with rules.activate():
    return jax.jit(gradient)(
      placed, jax.device_put(x_BTD, rules.sharding(("batch", "length", None)))
    )


@pytest.mark.parametrize(
  "mesh", MESHES, ids=["-".join(f"{a}{n}" for a, n in mesh.items()) for mesh in MESHES]
)
@pytest.mark.parametrize("even", [True, False], ids=["", "one_expert"])
def test_outputs_and_gradients_equal_one_devices(mesh, even):
  """In one case every token chooses the same two experts, so one device gets all rows."""
  moe, arrays = layer()
  x_BTD = jnp.asarray(np.random.default_rng(0).standard_normal((B, T, D)), jnp.float32)
  if not even:
    x_BTD = jnp.abs(x_BTD)
    kernel = arrays["router/kernel"]
    arrays |= {"router/kernel": kernel.at[:].set(0.01 * kernel).at[:, 2:4].add(1.0)}
  (value, (y, _)), gradients = run_on_mesh(None, moe, arrays, x_BTD)
  rules = Rules.make(make_mesh(mesh))
  assert over_devices.dispatch_axes(rules, x_BTD.shape, E, F) is not None
  (value_, (y_, _)), gradients_ = run_on_mesh(rules, moe, arrays, x_BTD)
  np.testing.assert_allclose(y_, y, atol=2e-5)
  np.testing.assert_allclose(value_, value, rtol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(b, a, atol=3e-5 * max(1, np.abs(a).max())),
    gradients,
    gradients_,
  )


def test_no_device_gathers_the_rows_of_the_batch():
  moe, arrays = layer()
  rules = Rules.make(make_mesh({"data": 2, "expert": 4}))
  x_BTD = jax.device_put(jnp.ones((B, T, D)), rules.sharding(("batch",)))
  with rules.activate():
    text = (
      jax.jit(lambda arrays, x: run(moe, arrays, x)[0]).lower(arrays, x_BTD).compile().as_text()
    )
  assert "all-to-all" in text
  assert f"f32[{B},{T},{D}]" not in text
  assert f"f32[{2 * B * T},{D}]" not in text


@pytest.mark.parametrize("factor", [1.25, 4.0])
def test_the_planner_knows_the_rounds_that_balanced_loads_skip(factor):
  """With room for the rows of all four devices no round is skipped."""
  moe, arrays = layer(factor=factor)
  rules = Rules.make(make_mesh({"data": 2, "expert": 4}))
  gradient = jax.jit(jax.grad(lambda arrays, x: run(moe, arrays, x)[0]))
  with rules.activate():
    text = gradient.lower(arrays, jnp.ones((B, T, D))).compile().as_text()
  program = Program(text)
  # forwards and backwards
  assert len(program.skipped) == (0 if factor == 4.0 else 2), program.skipped


def test_dropout_within_experts_is_refused():
  moe, arrays = layer(dropout=0.1)
  rules = Rules.make(make_mesh({"expert": 8}))
  with (
    rules.activate(),
    pytest.raises(UserError, match="mlp_dropout: found 0.1, expected 0 for experts"),
  ):
    jax.eval_shape(lambda x: run(moe, arrays, x, jax.random.key(0)), jnp.ones((B, T, D)))
