"""Recipes of mixtures have the papers' rates, and inherit the vocabulary of their initial run."""

import json

import pytest

import tests.recipes.nano  # noqa: F401 -- registers the variant of the initial run
from t5x_like import recipes, slots
from t5x_like.benchmarks import suites
from t5x_like.data import mixture
from t5x_like.training.resolve import resolve
from t5x_like.training.warm_start import inherit_model
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary


@pytest.fixture
def t5_directory(tmp_path):
  """Return a workdir with a config and a vocabulary but without weights."""
  config = resolve(recipes.load("tests/recipes/nano.py"))
  (tmp_path / "config.json").write_text(config.to_json())
  ByteVocabulary(100).save(tmp_path / "vocabulary")
  return tmp_path


def test_parts_and_evaluations_inherit_the_vocabulary_of_the_initial_run(t5_directory):
  init = json.dumps({"workdir": str(t5_directory)})
  config = inherit_model(recipes.load("configs/finetune/mixture.py:superglue", [f"init={init}"]))
  path = config.task.shared.vocabulary
  assert path.startswith(str(t5_directory))
  assert "vocabulary" not in config.task
  assert config.model.variant == "nano"
  assert {values.task.vocabulary for values in config.evals.values()} == {path}


def test_temperature_and_maximum_of_the_recipe_apply():
  """CB has 250 examples and ReCoRD 138,854: with K = 1,000 and T = 2 the rates are 1 to 2."""
  overrides = ["task.maximum=1000", "task.temperature=2"]
  task = recipes.load("configs/finetune/mixture.py:superglue", overrides).task
  assert task.rates == "temperature"
  assert task.maximum == 1000
  assert task.temperature == 2
  cb_rate, record_rate = mixture.temperature_rates([250, 138_854], task.temperature, task.maximum)
  assert record_rate / cb_rate == pytest.approx(2)


@pytest.mark.parametrize("size", ["small", "xxl"])
def test_every_task_of_the_pretraining_mixture_is_drawn(size):
  """The number of translations is limited to a million. RTE is in two suites, so each has half."""
  task = recipes.load(f"configs/t5/multitask.py:{size}").task
  rates = task.rates.to_dict()
  assert rates.keys() == task.parts.to_dict().keys()
  draws = dict(zip(rates, mixture.counts_per_period(rates, task.period)))
  assert min(draws.values()) > 0
  assert rates["rte"] == rates["superglue_rte"] == 1_245
  unlabelled = {"small": 710_000, "xxl": 133_000_000}[size]
  assert [
    draws[name] / draws["unlabelled"] for name in ("en_de", "en_fr", "en_ro", "record")
  ] == pytest.approx(
    [examples / unlabelled for examples in (1_000_000, 1_000_000, 610_320, 138_854)], rel=1e-3
  )


def test_baseline_mixture_limits_the_sizes_of_tasks():
  task = recipes.load("configs/t5/multitask.py:baseline", ["task.maximum=65536"]).task
  assert task.rates == "temperature"
  assert task.maximum == 65_536
  assert task.weights.rte == 0.5


def test_recipe_has_every_task_of_its_suites():
  config = recipes.load("configs/finetune/mixture.py:all")
  names = ("glue", "superglue", "squad", "cnn_dailymail", "wmt")
  tasks = [slots.find("suite", name, suites, "SUITE").tasks for name in names]
  texts = sum(benchmark.text is not None for suite in tasks for benchmark in suite.values())
  assert len(config.task.parts) == texts  # without WNLI, with pronouns
  assert config.task.parts.dpr.source == "t5:dpr:tfds:definite_pronoun_resolution"
  assert config.task.parts.en_ro.source == "tfds:wmt16_translate/ro-en"
  assert config.evals.en_de_dev.task.targets_length == 256
  assert "en_de_test" not in config.evals
  assert config.task.parts.stsb.source == "t5:stsb:tfds:glue/stsb"
  assert config.evals.multirc_dev.questions
  assert config.evals.mnli_matched.split == "validation_matched"
