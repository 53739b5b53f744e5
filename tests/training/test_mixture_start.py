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


def test_the_recipe_has_every_text_of_its_suites():
  config = recipes.load("configs/finetune/mixture.py:all")
  tasks = [slots.find("suite", name, suites, "SUITE").tasks for name in ("glue", "superglue", "squad")]
  texts = sum(benchmark.text is not None for suite in tasks for benchmark in suite.values())
  assert len(config.task.parts) == texts - 1  # all but WNLI
  assert config.task.parts.stsb.source == "t5:stsb:tfds:glue/stsb"
  assert config.evals.multirc_dev.questions and config.evals.mnli_matched.split == "validation_matched"
