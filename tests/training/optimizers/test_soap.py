"""SOAP is Adam in a basis of its own: it turns with its gradients, and without rotation it is
Adam."""

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
from t5x_like.training.optimizer import OPTIMIZERS, update_layerwise
from t5x_like.training.state import abstract_state, init_state

RATE = optax.constant_schedule(0.1)
STEPS = 7


def updates(gradients, name="soap", **options):
  """The update of each step for the parameters `w`, which stay where they are."""
  optimizer = OPTIMIZERS[name](RATE, weight_decay=0.0, **options)
  params = {"w": jnp.zeros_like(gradients[0])}
  state = optimizer.init(params)
  update = jax.jit(optimizer.update)
  found = []
  for step, gradient in enumerate(gradients):
    made, state = update({"w": gradient}, state, params, step=step)
    found.append(np.asarray(made["w"]))
  return found


def gradients_of(shape, seed=0):
  return list(
    jax.random.normal(jax.random.key(seed), (STEPS, *shape)) * jnp.arange(1.0, shape[-1] + 1)
  )


def test_the_update_of_rotated_gradients_is_the_rotated_update():
  gradients = gradients_of((5, 5))  # of full rank, or a basis of what they never touch would be any
  left, right = (
    np.linalg.qr(np.random.default_rng(seed).standard_normal((5, 5)))[0] for seed in (1, 2)
  )
  expected = [left @ u @ right.T for u in updates(gradients, every=2)]
  got = updates([left @ g @ right.T for g in gradients], every=2)
  adam = updates([left @ g @ right.T for g in gradients], "adamw")
  for want, found in zip(expected, got):
    np.testing.assert_allclose(found, want, rtol=2e-3, atol=2e-4)
  plain = [left @ u @ right.T for u in updates(gradients, "adamw")]
  assert np.abs(plain[-1] - adam[-1]).max() > 0.02  # the control: Adam does not turn


def test_without_rotated_sides_it_is_adam_from_the_second_gradient_on():
  gradients = gradients_of((6, 4))
  options = dict(b1=0.9, b2=0.99)
  adam = updates(gradients[1:], "adamw", **options)
  first, *rest = updates(gradients, widest=1, **options)
  assert not first.any()
  for want, found in zip(adam, rest):
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-7)


def test_one_long_side_leaves_the_other_rotated():
  gradients = gradients_of((6, 4))
  right = np.linalg.qr(np.random.default_rng(1).standard_normal((4, 4)))[0]
  expected = [u @ right.T for u in updates(gradients, widest=5)]
  for want, found in zip(expected, updates([g @ right.T for g in gradients], widest=5)):
    np.testing.assert_allclose(found, want, rtol=2e-3, atol=2e-4)


def test_every_layer_of_a_stack_has_its_own_basis():
  gradients = gradients_of((2, 6, 4))
  optimizer = update_layerwise(
    OPTIMIZERS["soap"](RATE, weight_decay=0.0, every=3), {"w": ("layers", "embed", "mlp")}
  )
  params = {"w": jnp.zeros((2, 6, 4))}
  state = optimizer.init(params)
  for step, gradient in enumerate(gradients):
    made, state = jax.jit(optimizer.update)({"w": gradient}, state, params, step=step)
  for layer in range(2):
    alone = updates([g[layer] for g in gradients], every=3)[-1]
    np.testing.assert_allclose(made["w"][layer], alone, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", ["soap", "shampoo"])
def test_statistics_that_do_not_divide_over_a_mesh_are_whole(name):
  """A router's six experts over eight devices, which divide its rows."""
  make = lambda: Linear((64, 6), ("embed", None), params.zeros, nnx.Rngs(0))  # noqa: E731
  model = jax.eval_shape(make)
  rules = Rules.make(make_mesh({"fsdp": 8}))
  optimizer = update_layerwise(OPTIMIZERS[name](RATE), {"kernel": ("embed", None)})
  state = init_state(lambda key: make(), optimizer, abstract_state(model, optimizer, rules), seed=0)
  own = state.opt_state["whole"][0]
  assert (
    not own.left["kernel"].sharding.is_fully_replicated
    and own.right["kernel"].sharding.is_fully_replicated
  )
