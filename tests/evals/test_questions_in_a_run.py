"""Questions asked while a run trains have the scores that the finished run gets for them."""

import json

import pytest

from t5x_like import evaluate, train
from t5x_like.report.writer import read_metrics

RECIPE = "tests/recipes/nano_decoder.py"
FILES = {
  "choices": {"query": "The door {} was", "choices": ["open", "a sea"], "gold": 0},
  "answers": {"context": "{} 2 + 3 =", "answer": "5"},
  "texts": {"text": "A short text {} of its own."},
}

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]


@pytest.fixture
def files(tmp_path):
  for name, row in FILES.items():
    (tmp_path / f"{name}.jsonl").write_text(
      "".join(json.dumps(row).replace("{}", str(n)) + "\n" for n in range(3))
    )
  return tmp_path


def test_scores_in_a_run_are_those_of_evaluate(files, capsys):
  run = f"--workdir={files / 'run'}"
  asked = {
    "name": "questions",
    "files": [f"{files}/*.jsonl"],
    "shots": 1,
    "max_new_tokens": 4,
    "max_examples": 2,
  }
  steps = ("--config.total_steps=4", "--config.eval_every=2", "--config.checkpoint.every=4")
  assert (
    train.main([f"--config={RECIPE}", run, f"--config.evals.asked={json.dumps(asked)}", *steps])
    == 0
  )
  rows = [row for row in read_metrics(str(files / "run")) if "eval/asked/choices/accuracy" in row]
  assert [row["step"] for row in rows] == [2, 4]
  # of two steps
  assert rows[0]["eval/asked/texts/bits_per_byte"] != rows[1]["eval/asked/texts/bits_per_byte"]
  flags = [
    f"--questions={files}/*.jsonl",
    "--shots=1",
    "--max_examples=2",
    f"--output={files / 'asked'}",
  ]
  assert evaluate.main([run, *flags]) == 0
  found = json.loads((files / "asked" / "results.json").read_text())["tasks"]
  assert {task.split("/")[-1] for task in found} == {"answers", "choices", "texts"}
  for task, one in found.items():
    if task.endswith("answers"):
      assert one["metrics"]["1-shot/unfinished"] == 2  # at more than the 4 tokens of the run
      continue
    for metric, value in one["metrics"].items():
      now = rows[1][f"eval/asked/{task.split('/')[-1]}/{metric.removeprefix('1-shot/')}"]
      assert now == pytest.approx(value, rel=1e-5), metric


def test_a_file_that_is_not_there_is_refused_before_the_first_step(tmp_path, capsys):
  asked = json.dumps({"name": "questions", "files": ["nowhere.jsonl"]})
  assert (
    train.main(
      [f"--config={RECIPE}", f"--workdir={tmp_path / 'run'}", f"--config.evals.asked={asked}"]
    )
    == 2
  )
  assert "nowhere.jsonl: no such file of questions" in capsys.readouterr().err
