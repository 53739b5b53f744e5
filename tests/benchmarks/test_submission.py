"""Files for leaderboards, from the predictions of runs."""

import json

import pytest

import tests.recipes.nano_encoder  # noqa: F401 -- the variant that the run is of
from t5x_like import evaluate, train
from t5x_like.benchmarks import submission
from t5x_like.benchmarks.suites import glue, superglue
from t5x_like.corpora.sources import open_source
from t5x_like.training import workdir as workdirs
from tests.runs import hide_other_devices

TWO = ["entailment", "not_entailment"]


def lines(rows) -> str:
  return "".join(json.dumps(row) + "\n" for row in rows)


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
  first = {
    "idx": {"passage": 0, "query": 2} if isinstance(idx, dict) else 2,
    "prediction": prediction,
  }
  rows = [{"idx": idx, "prediction": prediction}, first]  # in another order
  workdirs.write_lines(tmp_path / "run" / "predictions", f"{file}.jsonl", rows)
  submission.write_submission(tmp_path, superglue.SUITE, task, str(tmp_path / "run"))
  written = [json.loads(line) for line in (tmp_path / f"{file}.jsonl").read_text().splitlines()]
  assert written == [expected | {"idx": 2}, expected]


@pytest.mark.parametrize(
  ("task", "prediction", "expected"),
  [
    ("cola", "acceptable", "1"),
    ("wnli", "entailment", "1"),
    ("rte", "entailment", "entailment"),
    ("qqp", "none", "0"),
  ]
  + [
    ("rte", "a text\tof two\nlines", "entailment"),
    ("qnli", "", "entailment"),
    ("stsb", "nan", "0.000"),
  ],
)
def test_classes_are_numbers_where_glue_wants_numbers(task, prediction, expected, tmp_path):
  """In the order of the suite's labels; RTE and WNLI have the same in another order. Any other text
  is the first."""
  (file,) = glue.SUITE.tasks[task].test
  rows = [{"idx": idx, "prediction": prediction} for idx in ("10", "9")]
  workdirs.write_lines(tmp_path / "run" / "predictions", f"{file}.jsonl", rows)
  submission.write_submission(tmp_path, glue.SUITE, task, str(tmp_path / "run"))
  assert (
    tmp_path / f"{file}.tsv"
  ).read_text() == f"index\tprediction\n9\t{expected}\n10\t{expected}\n"


@pytest.mark.parametrize(
  ("benchmark", "split", "path", "content"),
  [
    (
      glue.SUITE.tasks["mnli"],
      "test_ax",
      "diagnostic/diagnostic.tsv",
      "index\tsentence1\tsentence2\n0\ta b\tc d\n",
    ),
    (
      superglue.SUITE.tasks["rte"],
      "test_ax_b",
      "AX-b/AX-b.jsonl",
      lines(
        [{"sentence1": "a b", "sentence2": "c d", "logic": "x", "idx": 0, "label": "entailment"}]
      ),
    ),
    (
      superglue.SUITE.tasks["rte"],
      "test_ax_g",
      "AX-g/AX-g.jsonl",
      lines(
        [{"premise": "a b", "hypothesis": "c d", "pair_id": 1, "label": "entailment", "idx": 0}]
      ),
    ),
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
  assert {key: record[key] for key in ("premise", "hypothesis")} == {
    "premise": "a b",
    "hypothesis": "c d",
  }
  assert record["label"] in ("-1", "entailment") and int(record["idx"]) == 0


@pytest.mark.more
@pytest.mark.usefixtures("compiled", "one_device")
def test_the_model_of_rte_and_that_of_record_write_their_files(tmp_path, capsys):
  """RTE's best run predicts the diagnostics; ReCoRD's label is the entity's text."""
  pairs = [
    {"premise": f"a b {n}", "hypothesis": "c", "label": TWO[n % 2], "idx": n} for n in range(12)
  ]
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
    "RTE/test": [{k: v for k, v in pairs[0].items() if k != "label"}],
  }
  files |= {"AX-b/AX-b": [{"sentence1": "a", "sentence2": "b", "idx": 0, "label": TWO[0]}]}
  files |= {"ReCoRD/train": [query] * 12, "ReCoRD/val": [query], "ReCoRD/test": [unanswered]}
  for name, rows in files.items():
    (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "data" / f"{name}.jsonl").write_text(lines(rows))
  flags = ["total_steps=2", "eval_every=2", "checkpoint.every=2", "evals={}", "task.length=64"]
  flags.append('model.design.position={"name": "learned", "length": 64}')
  recipe = "--config=tests/recipes/nano_encoder.py"
  with hide_other_devices():
    assert (
      train.main([recipe, f"--workdir={tmp_path}/bert", *(f"--config.{one}" for one in flags)]) == 0
    )
  where = [
    f"--workdir={tmp_path}/bert",
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
  assert evaluate.main([*where, *flags]) == 0, capsys.readouterr().err
  written = {
    path.name: [json.loads(line) for line in path.read_text().splitlines()]
    for path in (tmp_path / "out" / "submission").iterdir()
  }
  assert written.keys() == {"RTE.jsonl", "AX-b.jsonl", "ReCoRD.jsonl"}
  assert [row["label"] in TWO for row in (*written["RTE.jsonl"], *written["AX-b.jsonl"])] == [
    True,
    True,
  ]
  assert [row["idx"] for row in written["ReCoRD.jsonl"]] == [7, 9]
  assert all(row["label"] in ("Ann", "Bob") for row in written["ReCoRD.jsonl"])
