"""A suite killed in every phase of a run ends with the files of an unbroken suite."""

import pathlib
import sys

import pytest

from t5x_like.report.writer import read_metrics
from tests.benchmarks.small_suites import write_cola
from tests.drills.moments import kill_at
from tests.runs import fingerprints, losses, run, run_to_end, train

pytestmark = pytest.mark.drill
NANO = "import tests.recipes.nano_encoder"  # registers the variant of the runs
# Phase of a run -> the call that kills it: the event and a part of the file's name.
PHASES = {
  "before the run": ("os.rename", "request.json"),
  "before the first step": ("open", "recipe-0/metrics.jsonl"),
  "saving a checkpoint": ("os.rename", "recipe-0/checkpoints/2"),
  "in the evaluation after it": ("os.rename", "recipe-0/best/2"),
  "at the last checkpoint": ("os.rename", "recipe-0/checkpoints/4"),
  "in the prediction": ("os.rename", "predictions/dev.jsonl"),
  "in the prediction of the test set": ("os.rename", "predictions/CoLA.jsonl"),
  "at the result": ("os.rename", "recipe-0/result.json"),
  "in the submission": ("os.rename", "CoLA.tsv"),
  "at the table": ("os.rename", "results.json"),
}


FLAGS = (
  "--suite=glue",
  "--tasks=cola",
  "--config.total_steps=4",
  "--config.eval_every=2",
  "--config.checkpoint.every=2",
  "--config.batch_size=8",
  "--config.task.length=64",
)
# Files that differ from run to run, or are compared by `losses`, `evaluations` and `fingerprints`.
OTHER_FILES = ("metrics.jsonl", "history.jsonl", "environment.json")


def test_a_suite_killed_in_every_phase_ends_with_the_same_files(tmp_path):
  cache = tmp_path / "compiled"
  data = tmp_path / "data"
  pretrained = tmp_path / "bert"
  sentences = []
  for n in range(24):
    beginning = ("bad", "a good")[n % 2]
    sentences.append(f"{beginning} sentence of {'many ' * (n % 5)}words")
  write_cola(data, sentences, ["good sentence", "bad one"])
  length = '--config.model.design.position={"name": "learned", "length": 64}'
  short = ("--config.total_steps=2", "--config.checkpoint.every=2", "--config.evals={}", length)
  run_to_end(train(pretrained, *short, recipe="tests/recipes/nano_encoder.py"), cache=cache)

  def command(name: str) -> list[str]:
    flags = [f"--workdir={pretrained}", f"--data={data}", f"--output={tmp_path / name}"]
    return [sys.executable, "-m", "t5x_like.evaluate", *flags, *FLAGS]

  run_to_end(kill_at(command("whole"), "never", "", also=NANO), cache=cache)
  for phase, (event, name) in PHASES.items():
    code, output = run(kill_at(command("parts"), event, name, also=NANO), cache=cache)
    assert code == -9, f"{phase}: {output[-2000:]}"
    assert "Traceback" not in output, f"{phase}: {output[-2000:]}"
  run_to_end(kill_at(command("parts"), "never", "", also=NANO), cache=cache)
  expected = read_output(tmp_path / "whole")
  actual = read_output(tmp_path / "parts")
  assert {"submission/CoLA.tsv", "results.md"} <= expected.keys()
  assert actual.keys() == expected.keys()
  for name, text in expected.items():
    assert actual[name] == text, name
  uninterrupted = tmp_path / "whole" / "cola" / "recipe-0"
  killed = tmp_path / "parts" / "cola" / "recipe-0"
  assert len(losses(killed)) == 4
  assert losses(killed) == losses(uninterrupted)
  assert fingerprints(killed, 4) == fingerprints(uninterrupted, 4)
  assert len(evaluations(killed)) == 2
  assert evaluations(killed) == evaluations(uninterrupted)


def read_output(output: pathlib.Path) -> dict[str, str]:
  """Return the files of a suite's output by name, without its path and times."""
  texts = {}
  for file in sorted(output.rglob("*")):
    parts = file.relative_to(output).parts
    if file.suffix not in (".json", ".jsonl", ".tsv", ".md") or file.name in OTHER_FILES:
      continue
    if "checkpoints" in parts or "best" in parts:
      continue
    lines = file.read_text().replace(str(output), "").splitlines()
    if file.name in ("results.json", "results.md"):
      lines = [line for line in lines if "seconds" not in line and "| cola |" not in line]
    texts["/".join(parts)] = "\n".join(lines)
  return texts


def evaluations(workdir: pathlib.Path) -> list[dict]:
  """Return the metrics of each evaluation, without its duration."""
  rows = []
  for row in read_metrics(workdir):
    if "train/loss" not in row:
      rows.append({name: value for name, value in row.items() if not name.endswith("seconds")})
  return rows
