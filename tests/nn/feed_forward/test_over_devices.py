"""Dropless experts exchange rows between devices, with the results of one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from arrays import rngs
from refusals import refuses
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


def build_layer(top_k=2, dropout=0.0, factor=1.25):
  """Return (a layer of experts, its parameters)."""
  experts = Experts(experts=E, top_k=top_k, capacity_factor=factor)
  options = dict(activation=jax.nn.silu, gated=True, init=params.normal(0.5))
  moe = Moe(D, F, rngs(5), experts, dropout=Dropout(dropout), **options)
  return moe, params.arrays(moe)


def run(moe, arrays, x_BTD, key=None):
  """Return a loss that depends on every output, and the router's sums."""
  context = Context(Mask(positions(T), positions(T)))
  y_BTD, aux, _ = params.with_arrays(moe, arrays)(x_BTD, context, None, key)
  return jnp.sum(jnp.sin(y_BTD + jnp.arange(T, dtype=y_BTD.dtype)[:, None])), (y_BTD, aux)


@jax.jit
def run_with_gradients(moe, arrays, x_BTD):
  """Return (the outputs, the loss and its gradients by name)."""
  gradient = jax.value_and_grad(functools.partial(run, moe), (0, 1), has_aux=True)
  (value, (y_BTD, _)), (by_name, by_x) = gradient(arrays, x_BTD)
  return y_BTD, value, by_name | {"x": by_x}


@functools.cache
def compile_on_mesh(mesh_number):
  """Return (the rules of a mesh, `run_with_gradients` compiled for them)."""
  rules = Rules.make(make_mesh(MESHES[mesh_number]))

  def on_mesh(moe, arrays, x_BTD):
    with rules.activate():
      return run_with_gradients.__wrapped__(moe, arrays, x_BTD)

  return rules, jax.jit(on_mesh)


@pytest.mark.parametrize("mesh_number", range(len(MESHES)), ids=lambda number: str(MESHES[number]))
@pytest.mark.parametrize("even", [True, False], ids=["", "one_expert"])
def test_outputs_and_gradients_equal_one_device(mesh_number, even):
  """In the case `one_expert` all tokens choose two experts, so one device gets all rows."""
  moe, arrays = build_layer()
  x_BTD = jnp.asarray(np.random.default_rng(0).standard_normal((B, T, D)), jnp.float32)
  if not even:
    x_BTD = jnp.abs(x_BTD)
    kernel = arrays["router/kernel"]
    arrays |= {"router/kernel": kernel.at[:].set(0.01 * kernel).at[:, 2:4].add(1.0)}
  y, value, gradients = run_with_gradients(moe, arrays, x_BTD)
  rules, run_sharded = compile_on_mesh(mesh_number)
  assert over_devices.dispatch_axes(rules, x_BTD.shape, E, F) is not None
  sharded_arrays = jax.device_put(arrays, rules.param_shardings(params.named_params(moe)))
  sharded_x_BTD = jax.device_put(x_BTD, rules.sharding(("batch", "length", None)))
  sharded_y, sharded_value, sharded_gradients = run_sharded(moe, sharded_arrays, sharded_x_BTD)
  np.testing.assert_allclose(sharded_y, y, atol=2e-5)
  np.testing.assert_allclose(sharded_value, value, rtol=1e-5)
  for name, gradient in gradients.items():
    atol = 3e-5 * max(1, np.abs(gradient).max())
    np.testing.assert_allclose(sharded_gradients[name], gradient, atol=atol, err_msg=name)


def test_no_device_gathers_the_rows_of_the_batch():
  moe, arrays = build_layer()
  rules = Rules.make(make_mesh({"data": 2, "expert": 4}))
  x_BTD = jax.device_put(jnp.ones((B, T, D)), rules.sharding(("batch",)))
  forward = jax.jit(lambda arrays, x: run(moe, arrays, x)[0])
  with rules.activate():
    text = forward.lower(arrays, x_BTD).compile().as_text()
  assert "all-to-all" in text
  assert f"f32[{B},{T},{D}]" not in text
  assert f"f32[{2 * B * T},{D}]" not in text


@pytest.mark.parametrize("factor", [1.25, 4.0])
def test_planner_knows_the_rounds_that_balanced_loads_skip(factor):
  """With capacity for the rows of all four devices there is only one round, so none is skipped."""
  moe, arrays = build_layer(factor=factor)
  rules = Rules.make(make_mesh({"data": 2, "expert": 4}))
  gradient = jax.jit(jax.grad(lambda arrays, x: run(moe, arrays, x)[0]))
  with rules.activate():
    text = gradient.lower(arrays, jnp.ones((B, T, D))).compile().as_text()
  program = Program(text)
  # One in the forward pass and one in the backward pass.
  assert len(program.skipped) == (0 if factor == 4.0 else 2), program.skipped


def test_dropout_within_experts_is_refused():
  moe, arrays = build_layer(dropout=0.1)
  rules = Rules.make(make_mesh({"expert": 8}))
  with rules.activate(), refuses("mlp_dropout", "found 0.1"):
    jax.eval_shape(lambda x: run(moe, arrays, x, jax.random.key(0)), jnp.ones((B, T, D)))
