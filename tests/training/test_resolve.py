"""Resolving a recipe fills in defaults and sizes without opening its data."""

import json

import pytest

import stores
from refusals import refuses
from t5x_like import config as config_lib
from t5x_like import recipes, slots
from t5x_like.data import task as tasks
from t5x_like.store import tokens
from t5x_like.training.build import build_parts
from t5x_like.training.resolve import load_task_vocabulary, padded_vocab_size, resolve


def resolve_recipe(*overrides):
  return resolve(recipes.load("tests/recipes/nano.py", overrides))


def test_missing_vocab_size_is_the_published_one():
  assert resolve_recipe("model.vocab_size=None").model.vocab_size == 32128
  assert resolve_recipe("model.vocab_size=500").model.vocab_size == 500
  config = recipes.load("tests/recipes/nano.py")
  config.model = {"name": "t5", "variant": "byt5-small"}
  assert resolve(config).model.vocab_size == 384


def test_recipe_can_change_the_design_of_its_family():
  config = resolve_recipe(
    "model.design.activation=swiglu", "model.design.windows=[null, 4]", "model.layers=loop"
  )
  assert config.model.design.to_dict() == {"activation": "swiglu", "windows": [None, 4]}
  assert config.model.to_dict() == slots.to_json(config)["model"]
  design = build_parts(config).model.variant.design
  assert design.activation == "swiglu"
  assert design.windows == (None, 4)
  assert design.norm == "rmsnorm"
  assert resolve_recipe().model.design.to_dict() == {}


def test_flag_of_a_string_key_is_a_string_or_a_table():
  def load(*overrides):
    return recipes.load("configs/roberta/base.py", overrides)

  assert load("task.store=1815").task.store == "1815"
  assert load('model.head={"name": "tokens", "labels": 3}').model.head.to_dict() == {
    "name": "tokens",
    "labels": 3,
  }


@pytest.fixture
def forbid_data(monkeypatch):
  """Fail a test that builds a task or opens a store."""

  def refuse_to_open(*_, **__):
    raise AssertionError("data were opened")

  monkeypatch.setattr(tasks, "build_at", refuse_to_open)
  monkeypatch.setattr(tokens.TokenStore, "open", refuse_to_open)


@pytest.mark.parametrize(
  "task",
  [
    {"name": "span_corruption", "store": "STORE"},
    {"name": "mixture", "parts": {"a": {"name": "span_corruption"}}, "shared": {"store": "STORE"}},
    {"name": "mixture", "parts": {"a": {"name": "span_corruption", "store": "STORE"}}},
    {"name": "span_corruption", "source": "text:*.txt", "vocabulary": "STORE/train/vocabulary"},
    {
      "name": "text_to_text",
      "source": "jsonl:{split}.jsonl",
      "vocabulary": "STORE/train/vocabulary",
    },
  ],
)
def test_token_table_has_the_padded_size_of_the_vocabulary(task, tmp_path, monkeypatch, request):
  vocabulary = stores.ByteVocabulary(900)
  stores.write(tmp_path / "train", [[5, 6, 7]], vocabulary)
  request.getfixturevalue("forbid_data")  # after the store was written, which opens it
  config = recipes.load("tests/recipes/nano.py", ["model.vocab_size=auto"])
  task_json = json.dumps(task).replace("STORE", str(tmp_path))
  config.task = json.loads(task_json)
  assert load_task_vocabulary(config).fingerprint == vocabulary.fingerprint
  assert resolve(config).model.vocab_size == padded_vocab_size(vocabulary) == 1280


def test_automatic_vocab_size_without_a_vocabulary_is_refused(forbid_data):
  config = recipes.load("tests/recipes/nano.py", ["model.vocab_size=auto"])
  config.task = {"name": "image_classification", "source": "digits"}
  with refuses("vocab_size: found 'auto', but config.task names neither", "give the size"):
    resolve(config)


def test_resolving_twice_changes_nothing():
  config = resolve_recipe()
  assert resolve(config).to_dict() == config.to_dict()


def test_config_saved_before_a_key_existed_gets_its_default(capsys):
  saved = recipes.load("tests/recipes/nano.py").to_dict()
  older = dict(saved)
  del older["recompute_every"], older["selection"]
  assert config_lib.restore(older, ["seed=3"], "w/config.json").to_dict() == saved | {"seed": 3}
  assert capsys.readouterr().out.startswith(
    'w/config.json: written before these keys were added: {"recompute_every": 0, "sel'
  )
  with refuses("w/config.json", "key 'task' is missing; the file is damaged"):
    config_lib.restore({"model": {}}, [], "w/config.json")


def test_saved_config_with_a_dunder_key_is_refused():
  saved = recipes.load("tests/recipes/nano.py").to_dict()
  with refuses("w/config.json: ", "__class__ cannot be overridden", "restore it from a backup"):
    config_lib.restore(saved | {"mesh": {"__class__": 1}}, [], "w/config.json")
