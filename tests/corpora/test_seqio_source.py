"""Preprocessors of SeqIO tasks run as a source, once and before training; only a task that the
command names."""

import json

import numpy as np
import pytest

from t5x_like import trust
from t5x_like.corpora.sources import Skip, open_source
from t5x_like.errors import UserError
from t5x_like.runtime import process
from t5x_like.store.tokens import TokenStore
from tools import prepare_data

PAIRS = [{"en": f"sentence {n}", "de": "Satz" * n} for n in range(1, 7)] + [
  {"en": "no translation", "de": None}
]


@pytest.fixture
def pairs(tmp_path):
  path = tmp_path / "pairs.jsonl"
  path.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
  return path


def records(source: str, split: str = "train") -> list:
  trust.begin_command([source])
  return [record for _, record in open_source(source).records(split)]


def refusal(source: str, split: str = "train") -> str:
  with pytest.raises(UserError) as caught:
    records(source, split)
  assert "\n" not in str(caught.value)
  return str(caught.value)


def expected() -> list:
  made = []
  for pair in PAIRS[:6]:
    two = [f"translate English to French: {pair['en']}", pair["de"]]
    made += [{"inputs": two[0], "targets": two[1]}, {"inputs": two[1], "targets": two[0]}]
  return [record for record in made if len(record["inputs"]) >= 12]


def test_preprocessors_before_tokens_run_on_the_records_of_any_source(pairs, capsys):
  source = f"seqio:seqio_tasks:translation@jsonl:{pairs}"
  left = Skip("null")  # without a translation
  assert records(source) == [*expected(), left] == records(source)
  assert "translate, both_ways, long_ones without tokenize, trimmed" in capsys.readouterr().err
  found = open_source(source)
  assert found.splits == ("train",)
  facts = json.dumps([found.facts("inputs"), found.split_facts("train")])
  assert "seqio_tasks:translation" in facts and str(pairs.parent) not in facts


def test_a_task_with_records_of_its_own_a_list_and_a_function(pairs):
  own = [{"inputs": "translate English to German: validation one", "targets": "eins"}]
  assert records("seqio:seqio_tasks:owned", "validation")[:1] == own
  assert records("seqio:seqio_tasks:made", "validation")[:1] == own
  assert len(records(f"seqio:seqio_tasks:steps@jsonl:{pairs}")) == 7


def test_prepare_data_and_a_task_read_it_like_any_source(pairs, tmp_path):
  source = f"seqio:seqio_tasks:translation@jsonl:{pairs}"
  flags = [
    f"--source={source}",
    "--vocabulary=bytes",
    f"--output={tmp_path / 'store'}",
    "--split=train=train",
  ]
  assert prepare_data.main([*flags, "--text_field=inputs", "--workers=2"]) == 0
  store = TokenStore.open(tmp_path / "store" / "train")
  assert store.num_tokens == sum(len(record["inputs"].encode()) for record in expected())
  assert store.manifest.skipped == {"null": 1}
  trust.begin_command([source])
  arguments = {
    "source": source,
    "vocabulary": "bytes",
    "inputs": "{inputs}",
    "targets": "{targets}",
  }
  arguments |= {
    "inputs_length": 64,
    "targets_length": 64,
    "packed": False,
    "cache": str(tmp_path / "cache"),
  }
  task = process.build_task("task", "text_to_text", "train", arguments)
  assert task.num_examples == len(expected())
  batch = task.batch(np.arange(2), np.zeros(2, np.int64), 0)
  read = [
    task.vocabulary.decode([int(i) for i in row if i > 1])
    for row in np.asarray(batch["encoder_input_tokens"])
  ]
  assert read == [record["inputs"] for record in expected()[:2]]


def test_only_a_name_that_the_command_gives_is_imported(pairs):
  trust.begin_command([])
  with pytest.raises(UserError, match="'seqio_tasks:steps', which this command does not name"):
    open_source(f"seqio:seqio_tasks:steps@jsonl:{pairs}")
  trust.record_file("theirs/config.json", {"task": {"source": "seqio:subprocess:getoutput"}})
  with pytest.raises(
    UserError, match="theirs/config.json: source: found 'seqio:subprocess:getoutput'"
  ):
    open_source("seqio:subprocess:getoutput")


def test_refusals(pairs, tmp_path):
  jsonl = f"jsonl:{pairs}"
  assert "return other records when they are called again" in refusal(
    f"seqio:seqio_tasks:unsteady@{jsonl}"
  )
  assert "trimmed needs sequence_length" in refusal(f"seqio:seqio_tasks:by_length@{jsonl}")
  assert "a preprocessor failed (InvalidArgumentError" in refusal(
    f"seqio:seqio_tasks:broken@{jsonl}"
  )
  assert "found no records, expected a source after @" in refusal("seqio:seqio_tasks:steps")
  assert "cannot be used: AttributeError" in refusal(f"seqio:seqio_tasks:absent@{jsonl}")
  assert "expected seqio:module:TASK" in refusal("seqio:seqio_tasks")
  assert "expected a SeqIO task or a list" in refusal(f"seqio:seqio_tasks:Own@{jsonl}")
  other = tmp_path / "other.jsonl"
  other.write_text('{"en": "a", "de": "b"}\n{"en": "a"}\n')
  assert "found other fields than in the first record ('de')" in refusal(
    f"seqio:seqio_tasks:steps@jsonl:{other}"
  )


def test_a_registered_task_of_seqio_itself(tmp_path, monkeypatch):
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
  found = records("seqio:registered:a_task")
  assert [record["inputs"] for record in found] == ["a", "b"] and found[0]["draw"] != found[1][
    "draw"
  ]
  assert "a_task" in seqio.TaskRegistry.names()
