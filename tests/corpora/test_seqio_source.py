"""The preprocessors of a SeqIO task run as a source, if the command names the task."""

import json

import numpy as np
import pytest

import json_lines
from preparations import prepare
from refusals import refuses
from t5x_like import trust
from t5x_like.corpora.sources import Skip, open_source
from t5x_like.runtime import process
from t5x_like.store.tokens import TokenStore

PAIRS = [{"en": f"sentence {n}", "de": "Satz" * n} for n in range(1, 7)]
PAIRS.append({"en": "no translation", "de": None})


@pytest.fixture
def pairs(tmp_path):
  json_lines.write(tmp_path / "pairs.jsonl", PAIRS)
  return tmp_path / "pairs.jsonl"


def read_records(source: str, split: str = "train") -> list:
  trust.begin_command([source])
  return [record for _, record in open_source(source).records(split)]


def translation_records() -> list:
  """Return the expected records of the task `translation` on the pairs."""
  records_of_pairs = []
  for pair in PAIRS[:6]:
    sides = [f"translate English to French: {pair['en']}", pair["de"]]
    records_of_pairs += [
      {"inputs": sides[0], "targets": sides[1]},
      {"inputs": sides[1], "targets": sides[0]},
    ]
  return [record for record in records_of_pairs if len(record["inputs"]) >= 12]


def test_preprocessors_before_tokenisation_run_on_the_records_of_any_source(pairs, capsys):
  source = f"seqio:seqio_tasks:translation@jsonl:{pairs}"
  skip = Skip("null")  # without a translation
  assert read_records(source) == [*translation_records(), skip] == read_records(source)
  assert "translate, both_ways, long_ones without tokenize, trimmed" in capsys.readouterr().err
  opened = open_source(source)
  assert opened.splits == ("train",)
  facts = json.dumps([opened.facts("inputs"), opened.split_facts("train")])
  assert "seqio_tasks:translation" in facts
  assert str(pairs.parent) not in facts


def test_tasks_with_a_source_lists_and_functions_are_read(pairs):
  task_records = [{"inputs": "translate English to German: validation one", "targets": "eins"}]
  assert read_records("seqio:seqio_tasks:owned", "validation")[:1] == task_records
  assert read_records("seqio:seqio_tasks:made", "validation")[:1] == task_records
  assert len(read_records(f"seqio:seqio_tasks:steps@jsonl:{pairs}")) == 7


def test_prepare_data_and_tasks_read_it_like_any_source(pairs, tmp_path):
  source = f"seqio:seqio_tasks:translation@jsonl:{pairs}"
  flags = ["--text_field=inputs", "--split=train=train"]
  assert prepare(source, tmp_path / "store", *flags, workers=2) == 0
  store = TokenStore.open(tmp_path / "store" / "train")
  assert store.num_tokens == sum(len(record["inputs"].encode()) for record in translation_records())
  assert store.manifest.skipped == {"null": 1}
  trust.begin_command([source])
  arguments = {
    "source": source,
    "cache": str(tmp_path / "cache"),
    "vocabulary": "bytes",
    "inputs": "{inputs}",
    "targets": "{targets}",
    "inputs_length": 64,
    "targets_length": 64,
    "packed": False,
  }
  task = process.build_task("task", "text_to_text", "train", arguments)
  assert task.num_examples == len(translation_records())
  batch = task.batch(np.arange(2), np.zeros(2, np.int64), 0)
  inputs = []
  for row in np.asarray(batch["encoder_input_tokens"]):
    inputs.append(task.vocabulary.decode([int(i) for i in row if i > 1]))
  assert inputs == [record["inputs"] for record in translation_records()[:2]]


def test_only_modules_that_the_command_names_are_imported(pairs):
  trust.begin_command([])
  with refuses("'seqio_tasks:steps', which this command does not name"):
    open_source(f"seqio:seqio_tasks:steps@jsonl:{pairs}")
  trust.record_file("theirs/config.json", {"task": {"source": "seqio:subprocess:getoutput"}})
  with refuses("theirs/config.json: source: found 'seqio:subprocess:getoutput'"):
    open_source("seqio:subprocess:getoutput")


@pytest.mark.parametrize(
  "source, words",
  [
    ("seqio_tasks:unsteady@PAIRS", "return other records when they are called again"),
    ("seqio_tasks:by_length@PAIRS", "trimmed needs sequence_length"),
    ("seqio_tasks:broken@PAIRS", "a preprocessor failed (InvalidArgumentError"),
    ("seqio_tasks:steps", "found no records, expected a source after @"),
    ("seqio_tasks:absent@PAIRS", "cannot be used: AttributeError"),
    ("seqio_tasks", "expected seqio:module:TASK"),
    ("seqio_tasks:Own@PAIRS", "expected a SeqIO task or a list"),
  ],
)
def test_bad_tasks_are_refused(source, words, pairs):
  source = source.replace("PAIRS", f"jsonl:{pairs}")
  with refuses(words):
    read_records(f"seqio:{source}")


def test_records_with_other_fields_than_the_first_are_refused(tmp_path):
  uneven = tmp_path / "other.jsonl"
  uneven.write_text('{"en": "a", "de": "b"}\n{"en": "a"}\n')
  with refuses("found other fields than in the first record ('de')"):
    read_records(f"seqio:seqio_tasks:steps@jsonl:{uneven}")


def test_task_in_seqios_registry_is_read(tmp_path, monkeypatch):
  seqio = pytest.importorskip("seqio")
  (tmp_path / "registered.py").write_text(
    "import seqio, tensorflow as tf\n"
    "@seqio.map_over_dataset(num_seeds=1)\n"
    "def draw(record, seed):\n"
    "  return {**record, 'draw': tf.random.stateless_uniform([], seed)}\n"
    "def rows(split, shuffle_files, seed=None):\n"
    "  return tf.data.Dataset.from_tensor_slices({'inputs': ['a', 'b'], 'targets': ['c', 'd']})\n"
    "feature = seqio.Feature(seqio.ByteVocabulary())\n"
    "seqio.TaskRegistry.add('a_task', source=seqio.FunctionDataSource(rows, splits=['train']),\n"
    "  preprocessors=[draw, seqio.preprocessors.tokenize, seqio.CacheDatasetPlaceholder(),\n"
    "    seqio.preprocessors.append_eos], output_features={'inputs': feature, 'targets': "
    "feature}, metric_fns=[])\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  rows = read_records("seqio:registered:a_task")
  assert [record["inputs"] for record in rows] == ["a", "b"]
  assert rows[0]["draw"] != rows[1]["draw"]
  assert "a_task" in seqio.TaskRegistry.names()
