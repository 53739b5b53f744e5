"""Questions scored while a run trains have the scores that `evaluate` gives the finished run."""

import json

import pytest

from t5x_like import evaluate, train
from t5x_like.report.writer import read_metrics

RECIPE = "tests/recipes/nano_decoder.py"
# `{}` becomes the number of the row.
FILES = {
  "choices": {"query": "The door {} was", "choices": ["open", "a sea"], "gold": 0},
  "answers": {"context": "{} 2 + 3 =", "answer": "5"},
  "texts": {"text": "A short text {} of its own."},
}

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]


@pytest.fixture
def files(tmp_path):
  for name, row in FILES.items():
    lines = [json.dumps(row).replace("{}", str(n)) for n in range(3)]
    (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
  return tmp_path


def test_scores_in_a_run_equal_those_of_evaluate(files):
  run = f"--workdir={files / 'run'}"
  evaluator = {
    "name": "questions",
    "files": [f"{files}/*.jsonl"],
    "shots": 1,
    "max_new_tokens": 4,
    "max_examples": 2,
  }
  steps = ("--config.total_steps=4", "--config.eval_every=2", "--config.checkpoint.every=4")
  evals_flag = f"--config.evals.quiz={json.dumps(evaluator)}"
  assert train.main([f"--config={RECIPE}", run, evals_flag, *steps]) == 0
  rows = [row for row in read_metrics(str(files / "run")) if "eval/quiz/choices/accuracy" in row]
  assert [row["step"] for row in rows] == [2, 4]
  assert rows[0]["eval/quiz/texts/bits_per_byte"] != rows[1]["eval/quiz/texts/bits_per_byte"]
  flags = [
    f"--questions={files}/*.jsonl",
    "--shots=1",
    "--max_examples=2",
    f"--output={files / 'quiz'}",
  ]
  assert evaluate.main([run, *flags]) == 0
  tasks = json.loads((files / "quiz" / "results.json").read_text())["tasks"]
  assert {task.split("/")[-1] for task in tasks} == {"answers", "choices", "texts"}
  for task, record in tasks.items():
    if task.endswith("answers"):
      # `evaluate` generates more tokens than the 4 in the run, so scores differ. Its answers reach
      # their limit without an end too.
      assert record["metrics"]["1-shot/unfinished"] == 2
      continue
    for metric, value in record["metrics"].items():
      key = f"eval/quiz/{task.split('/')[-1]}/{metric.removeprefix('1-shot/')}"
      value_in_run = rows[1][key]
      assert value_in_run == pytest.approx(value, rel=1e-5), metric


def test_a_file_that_is_not_there_is_refused_before_the_first_step(tmp_path, capsys):
  evaluator = json.dumps({"name": "questions", "files": ["nowhere.jsonl"]})
  flags = [f"--workdir={tmp_path / 'run'}", f"--config.evals.quiz={evaluator}"]
  assert train.main([f"--config={RECIPE}", *flags]) == 2
  assert "nowhere.jsonl: no such file of questions" in capsys.readouterr().err
