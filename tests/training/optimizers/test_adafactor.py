"""Our Adafactor takes optax's steps, for single layers and for layers of a stack."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import more
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
  return {
    n: scale * jax.random.normal(k, s) for (n, s), k in zip(SHAPES.items(), keys, strict=True)
  }


@pytest.mark.parametrize(
  "settings",
  more.beyond(
    2,
    [
      {},
      {"clipping_threshold": 0.3, "decay_rate": 0.7},
      {"weight_decay": 0.01},
      {"multiply_by_parameter_scale": False},
    ],
  ),
)
def test_updates_equal_optaxs(settings):
  rate = schedule.rsqrt(warmup_steps=2)
  expected = {("weight_decay_rate" if k == "weight_decay" else k): v for k, v in settings.items()}
  a = optimizer.build_optimizer("adafactor", rate, **settings)
  b = optax.adafactor(rate, **expected)
  params = draw(0) | {"vector": jnp.zeros(40)}
  state_a = a.init(params)
  state_b = b.init(params)
  step_a = jax.jit(a.update)
  step_b = jax.jit(b.update)
  for seed in range(1, 4):
    grads = draw(seed, 10.0 ** (2 * seed - 5))
    updates_a, state_a = step_a(grads, state_a, params, step=seed - 1)
    updates_b, state_b = step_b(grads, state_b, params)
    for name in SHAPES:
      np.testing.assert_allclose(
        updates_a[name], updates_b[name], rtol=3e-5, atol=1e-8, err_msg=f"{name} {seed}"
      )
    params = optax.apply_updates(params, updates_b)
  our_statistics = next(s for s in jax.tree.leaves(state_a, is_leaf=is_factored) if is_factored(s))
  optax_statistics = next(
    s for s in jax.tree.leaves(state_b, is_leaf=is_factored) if is_factored(s)
  )
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=3e-5), our_statistics, optax_statistics
  )


def is_factored(x):
  return isinstance(x, optax.FactoredState)


def test_layers_of_a_stack_do_not_mix():
  rate = schedule.constant(learning_rate=0.1)
  axes = {"w": ("layers", "embed", "mlp")}
  stacked = optimizer.update_layerwise(optimizer.build_optimizer("adafactor", rate), axes)
  params = {"w": jax.random.normal(jax.random.key(0), (3, 128, 130))}
  grads = {"w": jax.random.normal(jax.random.key(1), (3, 128, 130))}
  together, _ = stacked.update(grads, stacked.init(params), params, step=0)
  alone = optimizer.build_optimizer("adafactor", rate)
  for layer in range(3):
    p = {"w": params["w"][layer]}
    g = {"w": grads["w"][layer]}
    single_update, _ = alone.update(g, alone.init(p), p, step=0)
    np.testing.assert_allclose(together["w"][layer], single_update["w"], rtol=1e-5)


def test_a_parameter_of_more_elements_than_int32_counts_is_traced():
  """PaLM 540B's token table has 4.7e9 elements."""
  rule = optimizer.build_optimizer("adafactor", schedule.rsqrt(warmup_steps=2))
  params = {"table": jax.ShapeDtypeStruct((256_000, 18_432), jnp.float32)}
  updates, _ = jax.eval_shape(lambda p: rule.update(p, rule.init(p), p, step=1), params)
  assert updates["table"].shape == (256_000, 18_432)
