"""SOAP is Adam in the eigenbasis of its statistics, so its updates rotate with the gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.linear import Linear
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.training.optimizer import build_optimizer, update_layerwise
from t5x_like.training.state import abstract_state, init_state

RATE = optax.constant_schedule(0.1)
STEPS = 7


def compute_updates(gradients, name="soap", **options):
  """Return the update of each step, without applying it to the parameters."""
  optimizer = build_optimizer(name, RATE, weight_decay=0.0, **options)
  params = {"w": jnp.zeros_like(gradients[0])}
  state = optimizer.init(params)
  update = jax.jit(optimizer.update)
  updates = []
  for step, gradient in enumerate(gradients):
    new_updates, state = update({"w": gradient}, state, params, step=step)
    updates.append(np.asarray(new_updates["w"]))
  return updates


def draw_gradients(shape):
  """Draw a gradient for each step, larger in the later columns."""
  draws = jax.random.normal(jax.random.key(0), (STEPS, *shape))
  return list(draws * jnp.arange(1.0, shape[-1] + 1))


def draw_rotation(size, seed):
  return np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))[0]


def assert_all_close(actual, expected, rtol=2e-3, atol=2e-4):
  for actual_update, expected_update in zip(actual, expected, strict=True):
    np.testing.assert_allclose(actual_update, expected_update, rtol=rtol, atol=atol)


def test_updates_of_rotated_gradients_are_rotated_updates():
  # Gradients of lower rank would have an arbitrary eigenbasis in their null space.
  gradients = draw_gradients((5, 5))
  left = draw_rotation(5, seed=1)
  right = draw_rotation(5, seed=2)

  def rotate(matrices):
    return [left @ matrix @ right.T for matrix in matrices]

  rotated_updates = rotate(compute_updates(gradients, every=2))
  assert_all_close(compute_updates(rotate(gradients), every=2), rotated_updates)
  # Adam's updates do not rotate with the gradients.
  rotated_adam = rotate(compute_updates(gradients, "adamw"))
  adam = compute_updates(rotate(gradients), "adamw")
  assert np.abs(rotated_adam[-1] - adam[-1]).max() > 0.02


def test_soap_without_rotations_equals_adam_from_the_second_gradient():
  gradients = draw_gradients((6, 4))
  options = dict(b1=0.9, b2=0.99)
  adam = compute_updates(gradients[1:], "adamw", **options)
  soap = compute_updates(gradients, widest=1, **options)
  assert not soap[0].any()
  assert_all_close(soap[1:], adam, rtol=1e-5, atol=1e-7)


def test_only_sides_up_to_widest_are_rotated():
  gradients = draw_gradients((6, 4))
  right = draw_rotation(4, seed=1)
  rotated_updates = [update @ right.T for update in compute_updates(gradients, widest=5)]
  rotated_gradients = [gradient @ right.T for gradient in gradients]
  assert_all_close(compute_updates(rotated_gradients, widest=5), rotated_updates)


@pytest.mark.parametrize("name", ["soap", "shampoo"])
def test_layers_of_a_stack_have_separate_statistics(name):
  gradients = draw_gradients((2, 6, 4))
  optimizer = update_layerwise(
    build_optimizer(name, RATE, weight_decay=0.0, every=3), {"w": ("layers", "embed", "mlp")}
  )
  params = {"w": jnp.zeros((2, 6, 4))}
  state = optimizer.init(params)
  update = jax.jit(optimizer.update)
  for step, gradient in enumerate(gradients):
    updates, state = update({"w": gradient}, state, params, step=step)
  for layer in range(2):
    layer_updates = compute_updates([gradient[layer] for gradient in gradients], name, every=3)
    np.testing.assert_allclose(updates["w"][layer], layer_updates[-1], rtol=5e-3, atol=5e-4)


@pytest.mark.parametrize("name", ["soap", "shampoo"])
def test_statistics_that_do_not_divide_over_a_mesh_are_replicated(name):
  """Eight devices divide the 64 rows of a router's kernel, but not its six columns."""

  def make_router():
    return Linear((64, 6), ("embed", None), params.zeros, nnx.Rngs(0))

  model = jax.eval_shape(make_router)
  rules = Rules.make(make_mesh({"fsdp": 8}))
  optimizer = update_layerwise(build_optimizer(name, RATE), {"kernel": ("embed", None)})
  abstract = abstract_state(model, optimizer, rules)
  state = init_state(lambda key: make_router(), optimizer, abstract, seed=0)
  statistics = state.opt_state["whole"][0]
  assert not statistics.left["kernel"].sharding.is_fully_replicated
  assert statistics.right["kernel"].sharding.is_fully_replicated
