"""Parts that do not fit each other are refused, and a run records its model's attention cores."""

import dataclasses
import json

import pytest

from t5x_like import recipes
from t5x_like.data import task as tasks
from t5x_like.errors import UserError
from t5x_like.training import checks
from t5x_like.training.build import build_parts
from t5x_like.training.resolve import resolve


def resolve_recipe(*overrides):
  return resolve(recipes.load("tests/recipes/nano.py", overrides))


def test_the_attention_cores_in_use_are_named():
  def cores(length, *overrides):
    config = resolve_recipe(*overrides)
    task = tasks.build(split="train", **config.task.to_dict())
    features = {
      name: dataclasses.replace(feature, shape=(length,)) for name, feature in task.features.items()
    }
    return checks.check_task(
      config, build_parts(config), dataclasses.replace(task, features=features)
    )

  assert cores(32) == {"attention_core": "dense", "cross_attention_core": "dense"}
  assert cores(1024) == {"attention_core": "chunked", "cross_attention_core": "chunked"}
  assert cores(1024, "model.design.core=dense") == {
    "attention_core": "dense",
    "cross_attention_core": "dense",
  }


def test_a_run_records_its_cores(trained):
  record = json.loads((trained / "environment.json").read_text())
  assert (record["attention_core"], record["cross_attention_core"]) == ("dense", "dense")


ENCODER = '{"name": "bert", "variant": "bert-tiny", "vocab_size": 384, "layers": "scan"}'
DECODER = '{"name": "gpt", "variant": "gpt2-tiny", "vocab_size": 384, "layers": "scan"}'
CAUSAL = '{"name": "causal_lm", "store": "builtin", "length": 32}'
MLM = '{"name": "mlm", "store": "builtin", "length": 32}'


@pytest.mark.parametrize(
  ("overrides", "message"),
  [
    (
      ["objective.name=mlm"],
      r"mlm needs the feature 'encoder_target_tokens', which task span_corruption does not make"
      r" \(it makes encoder_input_tokens, .*\); choose another task or the objective decoder or "
      r"encoder_decoder",
    ),
    (
      [f"model={DECODER}", f"task={CAUSAL}", "objective.name=mlm"],
      r"mlm needs .* task causal_lm .* objective decoder or",
    ),
    (
      [f"model={DECODER}", f"task={MLM}", "objective.name=mlm"],
      r"config.model: gpt needs the feature"
      r" 'decoder_input_tokens', which task mlm does not make",
    ),
    (
      [f"model={ENCODER}"],
      r"encoder_decoder needs a model with outputs for decoder_input_tokens, but bert's"
      r" are for encoder_input_tokens; choose another task$",
    ),
    (
      [f"model={DECODER}", f"task={CAUSAL}", "objective.name=dpo"],
      r"dpo needs examples of several rows, but task causal_lm makes one row for each; choose .* "
      r"objective decoder",
    ),
    (
      [f"model={ENCODER}", f"task={MLM}", "objective.name=electra"],
      r"electra needs the output 'generator_logits' with 3"
      r" axes, found none with model bert; choose another --config.model.head",
    ),
    (
      [f"model={ENCODER}", f"task={MLM}", "objective.name=span_boundary"],
      r"'encoder_span_starts'.*; set"
      r" --config.task.masking=spans$",
    ),
  ],
)
def test_parts_that_do_not_fit_are_refused_before_anything_is_compiled(overrides, message):
  config = resolve_recipe(*overrides)
  task = tasks.build(split="train", **config.task.to_dict())
  with pytest.raises(UserError, match=message):
    checks.check_task(config, build_parts(config), task)


def test_a_head_of_another_kind_is_refused():
  config = resolve_recipe(f"model={ENCODER}", f"task={MLM}", "objective.name=classification")
  task = tasks.build(split="train", **config.task.to_dict())
  labels = {"label": tasks.Feature((), "int32"), "example_weights": tasks.Feature((), "float32")}
  tokens = {"encoder_input_tokens": task.features["encoder_input_tokens"]}
  task = dataclasses.replace(task, features=tokens | labels)
  with pytest.raises(UserError, match="'logits' with 2 axes, found 3 axes with model bert"):
    checks.check_task(config, build_parts(config), task)
  classifier = ENCODER.replace("}", ', "head": {"name": "classification", "labels": 2}}')
  config = resolve_recipe(f"model={classifier}", f"task={MLM}", "objective.name=classification")
  checks.check_task(config, build_parts(config), task)
