"""muP by the logical axes of parameters: initial values, factors of logits, rates and decay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from refusals import refuses
from t5x_like import abstract_model, recipes
from t5x_like.nn import params
from t5x_like.training.optimizer import build_optimizer
from t5x_like.training.resolve import resolve
from t5x_like.tunings import TUNINGS

ONE_LAYER = (
  'model.variant={"dims": {"embed": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "mlp": 512, '
  '"layers": 1}, "design": {"init_stddev": 0.02, "tied": false}, "vocab_size": 384}',
)


MATRIX = (0.5**0.5, 0.5)  # growth and rate at twice the width
VECTOR = (1.0, 1.0)
LLAMA = "configs/llama/8b.py:debug"
T5 = "configs/t5/base.py:debug"


def resolve_mup(base, *flags, recipe=LLAMA):
  """Return a recipe's config with muP whose rates were found at the width or sizes `base`."""
  mup = ("optimizer.name=adamw", "model.vocab_size=384", "tuning.name=mup", f"tuning.base={base}")
  return resolve(recipes.load(recipe, [*mup, *flags]), "cpu")


def growths_and_rates(config):
  """Return {parameter: (initial deviation as a multiple of the base's, rate)}."""
  model = abstract_model.build_model(config)
  named = params.named_params(model)
  return {name.split("/", 1)[1]: (p.growth, p.rate) for name, p in named.items()}


@pytest.mark.parametrize(
  "names, expected",
  [
    ([f"blocks/self_attention/layer/{n}/kernel" for n in ("query", "key", "value", "out")], MATRIX),
    ([f"blocks/mlp/layer/{n}/kernel" for n in ("wi", "gate", "wo")], MATRIX),
    (["table", "kernel", "final_norm/scale", "blocks/mlp/in_norm/scale"], VECTOR),
  ],
)
def test_parameters_have_the_rules_of_table_8(names, expected):
  rules = growths_and_rates(resolve_mup(128))  # a model twice as wide
  assert {name: rules[name] for name in names} == dict.fromkeys(names, expected)


def test_logits_are_scaled_by_the_width():
  design = resolve_mup(128).model.design
  assert design.logits_scale == 0.5
  assert "attention_scale" not in design


def test_a_resolved_config_resolves_to_itself():
  config = resolve_mup(128)
  assert resolve(config, "cpu").to_dict() == config.to_dict()


def test_heads_of_another_width_are_scaled_by_their_width_and_t5_keeps_its_queries():
  sizes = '{"embed": 64, "heads": 4, "kv_heads": 4, "head_dim": 16, "mlp": 128}'
  config = resolve_mup(sizes, recipe=T5)  # 256 wide, heads of 64
  assert config.model.design.attention_scale == 1.0 * 16 / 64
  model = abstract_model.build_model(config)
  query = params.named_params(model)["encoder/blocks/self_attention/layer/query/kernel"]
  # T5's 1/sqrt(D H), at the base
  assert query.stddev == pytest.approx((64 * 16) ** -0.5 * (64 / 256) ** 0.5)


def test_a_head_of_labels_carries_the_factor_itself():
  bert = resolve_mup(64, recipe="configs/bert/base.py:debug")
  assert growths_and_rates(bert)["next_sentence/kernel"] == (0.5, 0.5)


def test_a_scaled_tied_table_carries_the_factor_itself():
  """Token vectors are multiplied by sqrt(D); the model is 256 wide."""
  gemma = resolve_mup(64, recipe="configs/gemma2/2b.py:debug")
  assert growths_and_rates(gemma)["table"] == (0.5, 0.5)
  assert gemma.model.design.logits_scale == 0.25 * 2


def initial_arrays(config):
  make = abstract_model.model_constructor(config)
  return jax.jit(lambda key: params.arrays(make(key)))(jax.random.key(0))


@pytest.fixture(scope="module")
def standard_arrays():
  """The initial arrays of the model without muP."""
  flags = ["model.vocab_size=384", *ONE_LAYER]
  return initial_arrays(resolve(recipes.load(LLAMA, flags), "cpu"))


def test_the_base_starts_as_without_mup(standard_arrays):
  arrays = initial_arrays(resolve_mup(256, *ONE_LAYER))
  for name, array in standard_arrays.items():
    np.testing.assert_array_equal(arrays[name], array, err_msg=name)


def test_initial_values_are_multiples_of_the_same_draw(standard_arrays):
  name = "decoder/blocks/mlp/layer/wo/kernel"
  kernel = initial_arrays(resolve_mup(128, *ONE_LAYER))[name]
  np.testing.assert_allclose(kernel, standard_arrays[name] * 0.5**0.5, rtol=1e-6)
  assert np.std(kernel) == pytest.approx(0.02 * 0.5**0.5, rel=0.01)


def update_of_ones(config, optimizer, name, gradient):
  """Return the update of a parameter of ones."""
  model = abstract_model.build_model(config)
  tune = TUNINGS.make("config.tuning", config.tuning)
  optimizer = tune.scale_rates(optimizer, params.named_params(model))
  arrays = {name: jnp.ones((2, 3))}
  grads = {name: jnp.full((2, 3), gradient)}
  return optimizer.update(grads, optimizer.init(arrays), arrays, step=0)[0][name]


@pytest.mark.parametrize(
  "name, rate", [("decoder/blocks/mlp/layer/wi/kernel", 0.5), ("head/kernel", 1.0)]
)
def test_rates_scale_the_step_but_not_the_decay(name, rate):
  config = resolve_mup(128)
  optimizer = build_optimizer("adamw", lambda step: 0.1, weight_decay=0.5)
  decay = update_of_ones(config, optimizer, name, gradient=0.0)
  both = update_of_ones(config, optimizer, name, gradient=1.0)
  np.testing.assert_allclose(decay, -0.1 * 0.5, rtol=1e-6)
  np.testing.assert_allclose(both - decay, -0.1 * rate, rtol=1e-4)


def test_an_optimizer_without_a_rule_is_refused_only_for_training():
  config = resolve_mup(128, "optimizer.name=lamb")  # as of a recipe to evaluate with
  with refuses("config.optimizer.name", "adamw"):
    update_of_ones(config, build_optimizer("adamw", lambda step: 0.1), "embed/table", 1.0)


@pytest.mark.parametrize(
  "name, rate", [("encoder/blocks/mlp/layer/wi/kernel", 0.5), ("embed/table", 1.0)]
)
def test_steps_in_proportion_to_parameters_need_only_the_root(name, rate):
  config = resolve_mup(64, "optimizer.name=adafactor", recipe=T5)
  assert config.tuning.relative
  optimizer = build_optimizer("adafactor", lambda step: 0.1)
  arrays = {name: jnp.ones((2, 3))}
  updates, _ = optimizer.update(arrays, optimizer.init(arrays), arrays, step=0)
  scaled = update_of_ones(config, optimizer, name, 1.0)
  np.testing.assert_allclose(scaled, updates[name] * rate, rtol=1e-5)


@pytest.mark.parametrize(
  "flag, key, value",
  [
    ("model.design.logits_scale=2.0", "model.design.logits_scale", "found 2.0"),
    ("tuning.base=100", "tuning.base", "100, expected a multiple of 64"),
    ("tuning.base=llama", "tuning.base", "'llama'"),
  ],
)
def test_settings_that_mup_cannot_honour_are_refused(flag, key, value):
  with refuses(f"config.{key}: ", value):
    resolve_mup(128, flag)
