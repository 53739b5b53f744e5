"""A mixture of labelled tasks that starts from another run: its rates, and the vocabulary of all of its parts."""

import json

import pytest

import tests.recipes.nano  # noqa: F401 -- the variant of the run that it starts from
from t5x_like import recipes, slots
from t5x_like.benchmarks import suites
from t5x_like.data import mixture
from t5x_like.training.other_runs import inherited
from t5x_like.training.resolve import resolve
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary


@pytest.fixture
def pretrained(tmp_path):
  """The config and vocabulary of a T5, all that is read before the weights."""
  config = resolve(recipes.load("tests/recipes/nano.py"))
  (tmp_path / "config.json").write_text(config.to_json())
  ByteVocabulary(100).save(tmp_path / "vocabulary")
  return tmp_path


def test_parts_and_evaluations_take_the_vocabulary_of_the_run(pretrained):
  init = json.dumps({"workdir": str(pretrained)})
  found = inherited(recipes.load("configs/finetune/mixture.py:superglue", [f"init={init}"]))
  path = found.task.shared.vocabulary
  assert path.startswith(str(pretrained)) and "vocabulary" not in found.task
  assert found.model.variant == "nano"
  assert {values.task.vocabulary for values in found.evals.values()} == {path}


def test_tasks_are_drawn_by_their_examples_up_to_a_limit():
  """CB has 250 examples, ReCoRD 138,854: with K = 1,000 and T = 2 they are drawn as 1 to 2."""
  config = recipes.load("configs/finetune/mixture.py:superglue", ["task.maximum=1000", "task.temperature=2"])
  assert (config.task.rates, config.task.maximum, config.task.temperature) == ("temperature", 1000, 2)
  first, second = mixture.temperature([250, 138_854], config.task.temperature, config.task.maximum)
  assert second / first == pytest.approx(2)


@pytest.mark.parametrize("size", ["small", "xxl"])
def test_every_task_of_the_pretraining_mixture_is_drawn(size):
  """With the sizes of the data sets; RTE, in two suites, counts half in each."""
  task = recipes.load(f"configs/t5/multitask.py:{size}").task
  examples = {name.partition("/")[2]: one.examples for name, one in suites.learned_as("text").items()}
  examples |= {"unlabelled": 10**9, "dpr": 1_322, "superglue_rte": 2_490, "record": 138_854, "wsc": 259}
  sizes = [examples[name] * task.weights.get(name, 1.0) for name in task.parts]
  rates = mixture.temperature(sizes, task.temperature, task.maximum)
  found = dict(zip(task.parts, mixture.counts(dict(zip(task.parts, rates)), task.period)))
  assert min(found.values()) > 0 and found["rte"] == found["superglue_rte"]
  assert found["en_fr"] / found["unlabelled"] == pytest.approx(1 if size == "small" else 40_853_298 / 133e6, rel=1e-3)


def test_the_recipe_has_every_text_of_its_suites():
  config = recipes.load("configs/finetune/mixture.py:all")
  names = ("glue", "superglue", "squad", "cnn_dailymail", "wmt")
  tasks = [slots.find("suite", name, suites, "SUITE").tasks for name in names]
  texts = sum(benchmark.text is not None for suite in tasks for benchmark in suite.values())
  assert len(config.task.parts) == texts  # without WNLI, with pronouns
  assert config.task.parts.dpr.source == "t5:dpr:tfds:definite_pronoun_resolution"
  assert config.task.parts.en_ro.source == "tfds:wmt16_translate/ro-en"
  assert config.evals.en_de_dev.task.targets_length == 256 and "en_de_test" not in config.evals
  assert config.task.parts.stsb.source == "t5:stsb:tfds:glue/stsb"
  assert config.evals.multirc_dev.questions and config.evals.mnli_matched.split == "validation_matched"
