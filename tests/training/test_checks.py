"""Incompatible parts are refused, and a run records the attention cores of its model."""

import dataclasses
import json

import pytest

from refusals import refuses
from t5x_like import recipes
from t5x_like.data import task as tasks
from t5x_like.training import checks
from t5x_like.training.build import build_parts
from t5x_like.training.resolve import resolve


def resolve_recipe(*overrides):
  return resolve(recipes.load("tests/recipes/nano.py", overrides))


def test_checks_return_the_attention_cores_in_use():
  def find_cores(length, *overrides):
    config = resolve_recipe(*overrides)
    task = tasks.build(split="train", **config.task.to_dict())
    features = {
      name: dataclasses.replace(feature, shape=(length,)) for name, feature in task.features.items()
    }
    return checks.check_task(
      config, build_parts(config), dataclasses.replace(task, features=features)
    )

  assert find_cores(32) == {"attention_core": "dense", "cross_attention_core": "dense"}
  assert find_cores(1024) == {"attention_core": "chunked", "cross_attention_core": "chunked"}
  assert find_cores(1024, "model.design.core=dense") == {
    "attention_core": "dense",
    "cross_attention_core": "dense",
  }


def test_run_records_its_cores(trained):
  record = json.loads((trained / "environment.json").read_text())
  assert record["attention_core"] == "dense"
  assert record["cross_attention_core"] == "dense"


ENCODER = '{"name": "bert", "variant": "bert-tiny", "vocab_size": 384, "layers": "scan"}'
DECODER = '{"name": "gpt", "variant": "gpt2-tiny", "vocab_size": 384, "layers": "scan"}'
CAUSAL = '{"name": "causal_lm", "store": "builtin", "length": 32}'
MLM = '{"name": "mlm", "store": "builtin", "length": 32}'


MLM_TASK = f"task={MLM}"
CAUSAL_TASK = f"task={CAUSAL}"


@pytest.mark.parametrize(
  ("overrides", "parts"),
  [
    (
      ["objective.name=mlm"],
      (
        "mlm needs the feature 'encoder_target_tokens', which task span_corruption does not make",
        "choose another task or the objective decoder or encoder_decoder",
      ),
    ),
    (
      [f"model={DECODER}", CAUSAL_TASK, "objective.name=mlm"],
      ("mlm needs", "task causal_lm", "objective decoder or"),
    ),
    (
      [f"model={DECODER}", MLM_TASK, "objective.name=mlm"],
      ("config.model: gpt needs the feature 'decoder_input_tokens'", "task mlm does not make"),
    ),
    (
      [f"model={ENCODER}"],
      ("outputs for decoder_input_tokens, but bert's are for encoder_input_tokens",),
    ),
    (
      [f"model={ENCODER}", MLM_TASK, "objective.name=electra"],
      ("'generator_logits' with 3 axes, found none with model bert", "--config.model.head"),
    ),
    (
      [f"model={ENCODER}", MLM_TASK, "objective.name=span_boundary"],
      ("'encoder_span_starts'", "set --config.task.masking=spans"),
    ),
  ],
)
def test_incompatible_parts_are_refused(overrides, parts):
  config = resolve_recipe(*overrides)
  task = tasks.build(split="train", **config.task.to_dict())
  with refuses(*parts):
    checks.check_task(config, build_parts(config), task)


def test_head_of_another_kind_is_refused():
  config = resolve_recipe(f"model={ENCODER}", f"task={MLM}", "objective.name=classification")
  task = tasks.build(split="train", **config.task.to_dict())
  labels = {"label": tasks.Feature((), "int32"), "example_weights": tasks.Feature((), "float32")}
  tokens = {"encoder_input_tokens": task.features["encoder_input_tokens"]}
  task = dataclasses.replace(task, features=tokens | labels)
  with refuses("'logits' with 2 axes, found 3 axes with model bert"):
    checks.check_task(config, build_parts(config), task)
  classifier = ENCODER.replace("}", ', "head": {"name": "classification", "labels": 2}}')
  config = resolve_recipe(f"model={classifier}", f"task={MLM}", "objective.name=classification")
  checks.check_task(config, build_parts(config), task)
