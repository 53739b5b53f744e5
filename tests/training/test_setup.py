"""What `resolve` makes of a recipe's model, and what a run records of it."""

import json

from t5x_like import config as config_lib
from t5x_like import recipes
from t5x_like.training import assembly
from t5x_like.training.environment import attention_cores


def resolved(*overrides):
  return assembly.resolve(recipes.load("tests/recipes/nano.py", overrides))


def test_a_vocabulary_that_is_not_given_is_the_published_one():
  assert resolved("model.vocab_size=None").model.vocab_size == 32128
  assert resolved("model.vocab_size=500").model.vocab_size == 500
  config = recipes.load("tests/recipes/nano.py")
  config.model = {"name": "t5", "variant": "byt5-small"}
  assert assembly.resolve(config).model.vocab_size == 384


def test_a_recipe_changes_the_design_of_its_family():
  config = resolved("model.design.activation=swiglu", "model.design.windows=[null, 4]", "model.layers=loop")
  assert config.model.design.to_dict() == {"activation": "swiglu", "windows": [None, 4]}
  assert config.model.to_dict() == json.loads(config_lib.to_json(config))["model"]
  design = assembly.build(config).model.variant.design
  assert (design.activation, design.windows, design.norm) == ("swiglu", (None, 4), "rmsnorm")
  assert resolved().model.design.to_dict() == {}


def test_a_word_stays_one_unless_a_table_replaces_it():
  load = lambda *overrides: recipes.load("configs/roberta/base.py", overrides)  # noqa: E731
  assert load("task.store=1815").task.store == "1815"
  assert load('model.head={"name": "tokens", "labels": 3}').model.head.to_dict() == {"name": "tokens", "labels": 3}


def test_the_attention_cores_in_use_are_named():
  parts = assembly.build(resolved())
  assert attention_cores(parts.model) == {"attention_core": "dense", "cross_attention_core": "dense"}


def test_a_run_records_its_cores(trained):
  record = json.loads((trained / "environment.json").read_text())
  assert (record["attention_core"], record["cross_attention_core"]) == ("dense", "dense")
