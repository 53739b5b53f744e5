"""Files for leaderboards spell predictions as each leaderboard does."""

import json

import pytest

import json_lines
from t5x_like import evaluate
from t5x_like.benchmarks import submission
from t5x_like.benchmarks.suites import glue, superglue
from t5x_like.corpora.sources import open_source
from t5x_like.training import workdir as workdirs

LABELS = ["entailment", "not_entailment"]


@pytest.mark.parametrize(
  ("task", "idx", "prediction", "expected"),
  [
    ("boolq", 3, "True", {"idx": 3, "label": "true"}),
    ("wic", 3, "False", {"idx": 3, "label": "false"}),
    ("wsc", 3, "True", {"idx": 3, "label": "True"}),
    ("copa", 3, "choice2", {"idx": 3, "label": 1}),
    ("cb", 3, "neutral", {"idx": 3, "label": "neutral"}),
    ("cb", 3, "a text", {"idx": 3, "label": "entailment"}),
    ("boolq", 3, "a text", {"idx": 3, "label": "false"}),
    ("rte", 3, "not_entailment", {"idx": 3, "label": "not_entailment"}),
    ("record", {"passage": 1, "query": 3}, "True", {"idx": 3, "label": "True"}),
  ],
)
def test_labels_are_spelled_as_superglue_spells_them(task, idx, prediction, expected, tmp_path):
  file, _ = next(iter(superglue.SUITE.tasks[task].test.items()))
  smaller_idx = {"passage": 0, "query": 2} if isinstance(idx, dict) else 2
  rows = [{"idx": n, "prediction": prediction} for n in (idx, smaller_idx)]
  workdirs.write_lines(tmp_path / "run" / "predictions", f"{file}.jsonl", rows)
  submission.write_submission(tmp_path, superglue.SUITE, task, str(tmp_path / "run"))
  # Sorted by index.
  assert json_lines.read(tmp_path / f"{file}.jsonl") == [expected | {"idx": 2}, expected]


@pytest.mark.parametrize(
  ("task", "prediction", "expected"),
  [
    ("cola", "acceptable", "1"),
    ("wnli", "entailment", "1"),
    ("rte", "entailment", "entailment"),
    # Any other text counts as the first label.
    ("qqp", "none", "0"),
    ("rte", "a text\tof two\nlines", "entailment"),
    ("qnli", "", "entailment"),
    ("stsb", "nan", "0.000"),
  ],
)
def test_classes_are_numbers_where_glue_wants_numbers(task, prediction, expected, tmp_path):
  """The number of a class is its place among the suite's labels, which RTE and WNLI order apart."""
  (file,) = glue.SUITE.tasks[task].test
  rows = [{"idx": idx, "prediction": prediction} for idx in ("10", "9")]
  workdirs.write_lines(tmp_path / "run" / "predictions", f"{file}.jsonl", rows)
  submission.write_submission(tmp_path, glue.SUITE, task, str(tmp_path / "run"))
  content = (tmp_path / f"{file}.tsv").read_text()
  assert content == f"index\tprediction\n9\t{expected}\n10\t{expected}\n"


AX_B_ROW = {"sentence1": "a b", "sentence2": "c d", "logic": "x", "idx": 0, "label": "entailment"}
AX_G_ROW = {"premise": "a b", "hypothesis": "c d", "pair_id": 1, "label": "entailment", "idx": 0}


@pytest.mark.parametrize(
  ("benchmark", "split", "path", "content"),
  [
    (
      glue.SUITE.tasks["mnli"],
      "test_ax",
      "diagnostic/diagnostic.tsv",
      "index\tsentence1\tsentence2\n0\ta b\tc d\n",
    ),
    (superglue.SUITE.tasks["rte"], "test_ax_b", "AX-b/AX-b.jsonl", json.dumps(AX_B_ROW) + "\n"),
    (superglue.SUITE.tasks["rte"], "test_ax_g", "AX-g/AX-g.jsonl", json.dumps(AX_G_ROW) + "\n"),
  ],
)
def test_diagnostic_sets_are_read_from_their_official_files(
  benchmark, split, path, content, tmp_path
):
  (tmp_path / path).parent.mkdir()
  (tmp_path / path).write_text(content)
  fields = ("premise", "hypothesis", "label", "idx")
  source = open_source(benchmark.files.source, data_dir=str(tmp_path), fields=fields)
  ((_, record),) = source.records(split)
  assert record["premise"] == "a b"
  assert record["hypothesis"] == "c d"
  assert record["label"] in ("-1", "entailment")
  assert int(record["idx"]) == 0


@pytest.mark.more
@pytest.mark.usefixtures("compiled", "one_device")
def test_rte_and_record_write_their_files_and_rte_predicts_the_diagnostics(
  pretrained, tmp_path, capsys
):
  """ReCoRD's label is the entity's text."""
  pairs = []
  for n in range(12):
    pairs.append({"premise": f"a b {n}", "hypothesis": "c", "label": LABELS[n % 2], "idx": n})
  test_pair = {"premise": "a b 0", "hypothesis": "c", "idx": 0}
  entities = [{"start": 0, "end": 2}, {"start": 8, "end": 10}]
  qas = [{"query": "@placeholder won", "idx": 5, "answers": [{"text": "Ann"}]}]
  query = {
    "source": "x",
    "passage": {"text": "Ann met Bob", "entities": entities},
    "qas": qas,
    "idx": 0,
  }
  unanswered = query | {"qas": [{"query": "@placeholder lost", "idx": n} for n in (9, 7)]}
  files = {
    "RTE/train": pairs,
    "RTE/val": pairs,
    "RTE/test": [test_pair],
    "AX-b/AX-b": [{"sentence1": "a", "sentence2": "b", "idx": 0, "label": LABELS[0]}],
    "ReCoRD/train": [query] * 12,
    "ReCoRD/val": [query],
    "ReCoRD/test": [unanswered],
  }
  for name, rows in files.items():
    json_lines.write(tmp_path / "data" / f"{name}.jsonl", rows)
  suite = [
    f"--workdir={pretrained}",
    "--suite=superglue",
    f"--data={tmp_path}/data",
    f"--output={tmp_path}/out",
  ]
  flags = [
    "--tasks=rte,record",
    "--config.total_steps=2",
    "--config.batch_size=4",
    "--config.task.length=64",
  ]
  assert evaluate.main([*suite, *flags]) == 0, capsys.readouterr().err
  folder = tmp_path / "out" / "submission"
  assert {path.name for path in folder.iterdir()} == {"RTE.jsonl", "AX-b.jsonl", "ReCoRD.jsonl"}
  for name in ("RTE.jsonl", "AX-b.jsonl"):
    (row,) = json_lines.read(folder / name)
    assert row["label"] in LABELS
  record_rows = json_lines.read(folder / "ReCoRD.jsonl")
  assert [row["idx"] for row in record_rows] == [7, 9]
  for row in record_rows:
    assert row["label"] in ("Ann", "Bob")
