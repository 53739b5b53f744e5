"""A suite's tasks are read from official files if given, else from TensorFlow datasets."""

import json

import pytest

from t5x_like import recipes, slots
from t5x_like.benchmarks import data, suites

FOLDER = "glue_data"


def benchmark(name: str):
  suite, task = name.split("/")
  return slots.find("suite", suite, suites, "SUITE").tasks[task]


def test_official_files_come_before_tensorflow_datasets():
  rte = benchmark("glue/rte")
  assert data.source_keys(rte, rte.encoder, None, "tfds") == {
    "task.source": "tfds:glue/rte",
    "task.data_dir": "tfds",
  }
  official_keys = data.source_keys(rte, rte.encoder, FOLDER, "tfds")
  assert official_keys == {"task.source": rte.files.source, "task.data_dir": FOLDER}
  assert json.loads(official_keys["task.source"].removeprefix("official:"))["classes"] == {
    "label": ["entailment", "not_entailment"]
  }
  name = benchmark("docstrings/name")
  docstring_keys = data.source_keys(name, name.text, FOLDER, "tfds")
  # This task has no official files.
  assert docstring_keys == {"task.source": "docstring_tasks:name", "task.data_dir": "tfds"}


def test_a_task_that_only_official_files_have_asks_for_them():
  ner = benchmark("tags/ner")
  words = "needs its official files; give their directory with --data=DIR"
  with pytest.raises(data.Unavailable, match=words):
    data.source_keys(ner, ner.encoder, None, "tfds")


def test_texts_that_t5_rewrites_are_read_through_their_form(tmp_path):
  stsb = benchmark("glue/stsb")
  assert data.source_keys(stsb, stsb.encoder, None, None) == {"task.source": "tfds:glue/stsb"}
  assert data.source_keys(stsb, stsb.text, None, None) == {"task.source": "t5:stsb:tfds:glue/stsb"}
  official_keys = data.source_keys(stsb, stsb.text, FOLDER, None)
  assert official_keys["task.source"] == f"t5:stsb:{stsb.files.source}"


def test_a_tensorflow_dataset_that_is_not_prepared_is_unavailable(tmp_path):
  config = recipes.load("configs/finetune/text_to_text.py:glue/stsb", [f"task.data_dir={tmp_path}"])
  with pytest.raises(data.Unavailable, match="glue/stsb is not in"):
    data.check_available(config)


def test_bart_reads_articles_as_in_fairseq():
  recipe = "configs/finetune/text_to_text.py:cnn_dailymail/cnn_dailymail"
  t5 = recipes.load(recipe).task
  bart = recipes.load(f"{recipe},bart").task
  assert t5.inputs == "summarize: {article}"
  assert t5.inputs_length == 512
  assert bart.inputs == "{article}"
  assert bart.inputs_length == 1024


@pytest.mark.parametrize(
  "task, rate_batch_decay_epochs",
  [
    ("glue/rte", (1e-5, 32, 0.1, 10)),
    ("squad/squad_v2", (1.5e-5, 48, 0.01, 2)),
    ("choices/race_high", (1e-5, 16, 0.1, 4)),
  ],
)
def test_roberta_is_fine_tuned_by_its_table(task, rate_batch_decay_epochs):
  """Liu et al. 2019, table 10."""
  config = recipes.load(f"configs/finetune/encoder.py:{task},roberta")
  rate, batch_size, decay, epochs = rate_batch_decay_epochs
  assert config.schedule.learning_rate == rate
  assert config.batch_size == batch_size
  assert config.optimizer.weight_decay == decay
  assert round(config.total_steps * batch_size / benchmark(task).examples) == epochs


def test_evaluations_on_other_data_have_files_of_their_own(tmp_path):
  xquad = benchmark("xquad/xquad")
  keys = data.source_keys(xquad, xquad.encoder, FOLDER, None)
  config = recipes.load(
    "configs/finetune/encoder.py:xquad/xquad,official", [f"task.data_dir={FOLDER}"]
  )
  assert config.task.source == keys["task.source"] == xquad.files.source
  for language, files in xquad.own_files.items():
    assert config.evals[language].task.source == files.source
    assert keys[f"evals.{language}.task.source"] == files.source
  tfds_config = recipes.load("configs/finetune/encoder.py:xquad/xquad")
  assert tfds_config.task.source == "tfds:squad/v1.1"
  assert tfds_config.evals.de.task.source == "tfds:xquad/de"


def test_a_task_is_available_once_all_files_of_its_splits_exist(tmp_path):
  config = recipes.load(
    "configs/finetune/encoder.py:glue/rte,official", [f"task.data_dir={tmp_path}"]
  )
  with pytest.raises(data.Unavailable, match="found none of the files of RTE, RTE/train.tsv"):
    data.check_available(config)
  (tmp_path / "RTE").mkdir()
  for split in ("dev", "train"):
    with pytest.raises(data.Unavailable):
      data.check_available(config)
    (tmp_path / "RTE" / f"{split}.tsv").write_text(
      "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n"
    )
  data.check_available(config)
  assert data.task_splits(config) == ("train", "validation")
