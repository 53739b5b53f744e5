"""A text-to-text model learns and is scored on the tasks whose texts T5 rewrites."""

import json

import pytest

import json_lines
from t5x_like import evaluate, train
from t5x_like.benchmarks import submission
from t5x_like.benchmarks.suites import glue, superglue

pytestmark = pytest.mark.usefixtures("compiled")


def write_official_files(folder) -> str:
  """Write a few records of MultiRC and WSC as SuperGLUE's archive does; return the flag --data."""
  for split in ("train", "val", "test"):
    labels = {} if split == "test" else {"label": 1}
    options = [{"text": f"o{n}", "idx": n} | labels for n in range(2)]
    questions = [{"question": "why?", "idx": n, "answers": options} for n in range(2)]
    passage = {"idx": 0, "passage": {"text": "t", "questions": questions}}
    json_lines.write(folder / "MultiRC" / f"{split}.jsonl", [passage])
    spans = {"span1_text": "Al", "span1_index": 0, "span2_text": "he", "span2_index": 3}
    rows = [{"text": "Al said that he slept .", "target": spans, "idx": n} for n in range(2)]
    if split != "test":
      rows = [row | {"label": row["idx"] == 0} for row in rows]
    json_lines.write(folder / "WSC" / f"{split}.jsonl", rows)
  return f"--data={folder}"


@pytest.mark.heavy
def test_a_suite_trains_on_t5s_texts_and_judges_as_t5_does(tmp_path, capsys):
  run = tmp_path / "run"
  output = tmp_path / "out"
  short_run = (
    "--config.total_steps=1",
    "--config.eval_every=1",
    "--config.checkpoint.every=1",
    "--config.batch_size=8",
  )
  assert train.main(["--config=tests/recipes/nano.py", f"--workdir={run}", *short_run]) == 0
  lengths = ("--config.task.inputs_length=64", "--config.task.targets_length=8")
  command = [
    f"--workdir={run}",
    "--suite=superglue",
    "--tasks=multirc,wsc",
    write_official_files(tmp_path / "raw"),
  ]
  status = evaluate.main([*command, f"--output={output}", *short_run, *lengths])
  assert status == 0, capsys.readouterr().err
  tasks = json.loads((output / "results.json").read_text())["tasks"]
  multirc = tasks["multirc"]["metrics"]
  wsc = tasks["wsc"]["metrics"]
  assert tasks["multirc"]["counted"] == ["dev/f1a", "dev/exact_match"]
  assert {"dev/f1a", "dev/exact_match", "dev/accuracy"} <= multirc.keys()
  assert multirc["dev/examples"] == 4
  assert wsc["dev/examples"] == 2
  assert "dev/accuracy" in wsc
  # T5 learns only the right referents of WSC
  for name, count in {"MultiRC": 4, "WSC": 1}.items():
    (store,) = (run / "suites" / "prepared").glob(f"super_{name}-train-*")
    assert json.loads((store / "manifest.json").read_text())["num_items"] == count
  (passage,) = json_lines.read(output / "submission" / "MultiRC.jsonl")
  assert len(passage["passage"]["questions"]) == 2
  labels = json_lines.read(output / "submission" / "WSC.jsonl")
  assert [row["idx"] for row in labels] == [0, 1]


def write_predictions(workdir, file: str, predictions: list[str], reference: str | None) -> None:
  rows = []
  for idx, prediction in enumerate(predictions):
    rows.append({"idx": idx, "prediction": prediction, "references": [reference, "-1"]})
  json_lines.write(workdir / "predictions" / f"{file}.jsonl", rows)


def test_generated_referents_are_submitted_as_classes(tmp_path):
  write_predictions(tmp_path / "run", "WSC", ["the Al", "Bob"], reference="Al")
  submission.write_submission(tmp_path, superglue.SUITE, "wsc", tmp_path / "run")
  labels = [row["label"] for row in json_lines.read(tmp_path / "WSC.jsonl")]
  assert labels == ["True", "False"]


def test_generated_similarities_are_submitted_as_numbers(tmp_path):
  write_predictions(tmp_path / "run", "STS-B", ["2.6", "no number"], reference=None)
  submission.write_submission(tmp_path, glue.SUITE, "stsb", tmp_path / "run")
  lines = (tmp_path / "STS-B.tsv").read_text().splitlines()
  assert lines[1:] == ["0\t2.600", "1\t0.000"]
