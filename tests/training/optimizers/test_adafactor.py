"""Our Adafactor has optax's updates and statistics, also for layers of a stack."""

import jax
import jax.numpy as jnp
import optax
import pytest

from arrays import assert_trees_close
from t5x_like.training import optimizer, schedule
from t5x_like.training.optimizers import adafactor as ours

SHAPES = {
  "square": (128, 128),
  "wide": (130, 300),
  "tall": (300, 130),
  "narrow": (200, 20),
  "vector": (40,),
  "cube": (3, 128, 160),
  "wider": (132, ours._WIDE + 100),
}


def draw(seed, scale=1.0):
  keys = jax.random.split(jax.random.key(seed), len(SHAPES))
  arrays = {}
  for (name, shape), key in zip(SHAPES.items(), keys, strict=True):
    arrays[name] = scale * jax.random.normal(key, shape)
  return arrays


def factored_state(state) -> optax.FactoredState:
  """Return the statistics of Adafactor in a state."""

  def is_factored(node):
    return isinstance(node, optax.FactoredState)

  return next(filter(is_factored, jax.tree.leaves(state, is_leaf=is_factored)))


# (arguments of our optimizer, arguments of optax's)
SETTINGS = [
  ({}, {}),
  ({"clipping_threshold": 0.3, "decay_rate": 0.7}, {"clipping_threshold": 0.3, "decay_rate": 0.7}),
  ({"weight_decay": 0.01}, {"weight_decay_rate": 0.01}),
  ({"multiply_by_parameter_scale": False}, {"multiply_by_parameter_scale": False}),
]


@pytest.mark.parametrize("settings, optax_settings", SETTINGS)
def test_updates_and_statistics_equal_optaxs(settings, optax_settings):
  rate = schedule.rsqrt(warmup_steps=2)
  our_optimizer = optimizer.build_optimizer("adafactor", rate, **settings)
  optax_optimizer = optax.adafactor(rate, **optax_settings)
  params = draw(0) | {"vector": jnp.zeros(40)}
  state = our_optimizer.init(params)
  optax_state = optax_optimizer.init(params)
  update = jax.jit(our_optimizer.update)
  optax_update = jax.jit(optax_optimizer.update)
  for seed in range(1, 4):
    grads = draw(seed, 10.0 ** (2 * seed - 5))
    updates, state = update(grads, state, params, step=seed - 1)
    expected, optax_state = optax_update(grads, optax_state, params)
    assert_trees_close(updates, expected, rtol=3e-5, atol=1e-8)
    params = optax.apply_updates(params, expected)
  statistics = factored_state(state)
  assert_trees_close(statistics, factored_state(optax_state), rtol=3e-5, atol=0)


def test_parameters_of_more_than_2_31_elements_can_be_traced():
  """PaLM 540B's token table has 4.7e9 elements."""
  rule = optimizer.build_optimizer("adafactor", schedule.rsqrt(warmup_steps=2))
  params = {"table": jax.ShapeDtypeStruct((256_000, 18_432), jnp.float32)}
  updates, _ = jax.eval_shape(lambda p: rule.update(p, rule.init(p), p, step=1), params)
  assert updates["table"].shape == (256_000, 18_432)
