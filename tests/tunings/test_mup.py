"""muP by the logical axes of parameters: initial values, factors of logits, rates and decay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import abstract_model, recipes
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.training.optimizer import build_optimizer
from t5x_like.training.resolve import resolve
from t5x_like.tunings import TUNINGS

ONE = (
  'model.variant={"dims": {"embed": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "mlp": 512, '
  '"layers": 1}, "design": {"init_stddev": 0.02, "tied": false}, "vocab_size": 384}',
)


def resolved(base, *flags, recipe="configs/llama/8b.py:debug"):
  mup = ("optimizer.name=adamw", "model.vocab_size=384", "tuning.name=mup", f"tuning.base={base}")
  return resolve(recipes.load(recipe, [*mup, *flags]), "cpu")


def known(config):
  """Return {parameter: (initial deviation as a multiple of the base's, rate)}."""
  model = abstract_model.build_model(config)
  return {
    name.split("/", 1)[1]: (p.growth, p.rate) for name, p in params.named_params(model).items()
  }


def test_matrices_tables_norms_and_outputs_have_the_rules_of_table_8():
  config = resolved(128)  # a model twice as wide
  found = known(config)
  matrix = (0.5**0.5, 0.5)
  vector = (1.0, 1.0)
  block = "blocks/self_attention/layer"
  assert {found[f"{block}/{n}/kernel"] for n in ("query", "key", "value", "out")} == {matrix}
  assert {found[f"blocks/mlp/layer/{n}/kernel"] for n in ("wi", "gate", "wo")} == {matrix}
  assert {
    found[n] for n in ("table", "kernel", "final_norm/scale", "blocks/mlp/in_norm/scale")
  } == {vector}
  assert config.model.design.logits_scale == 0.5 and "attention_scale" not in config.model.design
  assert resolve(config, "cpu").to_dict() == config.to_dict()


def test_heads_of_another_width_are_scaled_by_their_width_and_t5_keeps_its_queries():
  sizes = '{"embed": 64, "heads": 4, "kv_heads": 4, "head_dim": 16, "mlp": 128}'
  config = resolved(sizes, recipe="configs/t5/base.py:debug")  # 256 wide, heads of 64
  assert config.model.design.attention_scale == 1.0 * 16 / 64
  model = abstract_model.build_model(config)
  query = params.named_params(model)["encoder/blocks/self_attention/layer/query/kernel"]
  # T5's 1/sqrt(D H), at the base
  assert query.stddev == pytest.approx((64 * 16) ** -0.5 * (64 / 256) ** 0.5)


def test_a_head_of_labels_and_a_scaled_tied_table_carry_the_factor_themselves():
  bert = resolved(64, recipe="configs/bert/base.py:debug")
  assert known(bert)["next_sentence/kernel"] == (0.5, 0.5)
  # token vectors times sqrt(D), table tied; 256 wide
  gemma = resolved(64, recipe="configs/gemma2/2b.py:debug")
  assert known(gemma)["table"] == (0.5, 0.5) and gemma.model.design.logits_scale == 0.25 * 2


def test_initial_values_are_those_of_the_draw_and_the_base_is_as_without_mup():
  def drawn(config):
    make = abstract_model.model_constructor(config)
    return jax.jit(lambda key: params.arrays(make(key)))(jax.random.key(0))

  wide = drawn(resolved(128, *ONE))
  plain = drawn(resolved(256, *ONE))
  standard = drawn(
    resolve(recipes.load("configs/llama/8b.py:debug", ["model.vocab_size=384", *ONE]), "cpu")
  )
  assert all(np.array_equal(plain[name], x) for name, x in standard.items())
  kernel = wide["decoder/blocks/mlp/layer/wo/kernel"]
  np.testing.assert_allclose(
    kernel, standard["decoder/blocks/mlp/layer/wo/kernel"] * 0.5**0.5, rtol=1e-6
  )
  assert np.std(kernel) == pytest.approx(0.02 * 0.5**0.5, rel=0.01)


def steps(config, optimizer, name, gradient):
  """Return the update of a parameter of ones."""
  model = abstract_model.build_model(config)
  tune = TUNINGS.make("config.tuning", config.tuning)
  optimizer = tune.scale_rates(optimizer, params.named_params(model))
  arrays = {name: jnp.ones((2, 3))}
  grads = {name: jnp.full((2, 3), gradient)}
  return optimizer.update(grads, optimizer.init(arrays), arrays, step=0)[0][name]


def test_rates_scale_the_step_but_not_the_decay():
  config = resolved(128)
  optimizer = build_optimizer("adamw", lambda step: 0.1, weight_decay=0.5)
  for name, rate in (("decoder/blocks/mlp/layer/wi/kernel", 0.5), ("head/kernel", 1.0)):
    decay, both = (steps(config, optimizer, name, gradient) for gradient in (0.0, 1.0))
    np.testing.assert_allclose(decay, -0.1 * 0.5, rtol=1e-6)
    np.testing.assert_allclose(both - decay, -0.1 * rate, rtol=1e-4)


def test_an_optimizer_without_a_rule_is_refused_for_training_alone():
  config = resolved(128, "optimizer.name=lamb")  # as of a recipe to evaluate with
  with pytest.raises(UserError, match="config.optimizer.name: expected one of adamw"):
    steps(config, build_optimizer("adamw", lambda step: 0.1), "embed/table", 1.0)


def test_steps_in_proportion_to_parameters_need_the_root_alone():
  config = resolved(64, "optimizer.name=adafactor", recipe="configs/t5/base.py:debug")
  assert config.tuning.relative
  for name, rate in (("encoder/blocks/mlp/layer/wi/kernel", 0.5), ("embed/table", 1.0)):
    optimizer = build_optimizer("adafactor", lambda step: 0.1)
    arrays = {name: jnp.ones((2, 3))}
    plain = optimizer.update(arrays, optimizer.init(arrays), arrays, step=0)[0][name]
    np.testing.assert_allclose(steps(config, optimizer, name, 1.0), plain * rate, rtol=1e-5)


@pytest.mark.parametrize(
  ("flags", "says"),
  [
    (
      ["model.design.logits_scale=2.0"],
      "config.model.design.logits_scale: found 2.0, but muP sets 0.5",
    ),
    (["tuning.base=100"], "config.tuning.base: found the width 100, expected a multiple of 64"),
    (["tuning.base=llama"], "config.tuning.base: found 'llama'"),
  ],
)
def test_what_muP_cannot_do_is_refused_by_name(flags, says):
  with pytest.raises(UserError, match=says.replace(".", r"\.")):
    resolved(128, *flags)
