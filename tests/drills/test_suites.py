"""A suite killed in every phase of a run ends with the files of an unbroken suite."""

import pathlib
import sys

import pytest

from t5x_like.report.writer import read_metrics
from tests.drills.moments import killed_at
from tests.runs import fingerprints, losses, run, train

pytestmark = pytest.mark.drill
NANO = "import tests.recipes.nano_encoder"  # the variant of the runs
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


def test_a_suite_killed_in_every_phase_ends_with_the_same_files(tmp_path):
  where = {"cache": tmp_path / "compiled"}
  data = tmp_path / "data"
  pretrained = tmp_path / "bert"
  (data / "CoLA").mkdir(parents=True)
  rows = "".join(
    f"x\t{n % 2}\t\t{'a good' if n % 2 else 'bad'} sentence of {'many ' * (n % 5)}words\n"
    for n in range(24)
  )
  for split in ("train", "dev"):
    (data / "CoLA" / f"{split}.tsv").write_text(rows)
  (data / "CoLA" / "test.tsv").write_text("index\tsentence\n0\tgood sentence\n1\tbad one\n")
  length = '--config.model.design.position={"name": "learned", "length": 64}'
  short = ("--config.total_steps=2", "--config.checkpoint.every=2", "--config.evals={}", length)
  code, output = run(train(pretrained, *short, recipe="tests/recipes/nano_encoder.py"), **where)
  assert code == 0, output

  def command(name: str) -> list[str]:
    flags = (
      "total_steps=4",
      "eval_every=2",
      "checkpoint.every=2",
      "batch_size=8",
      "task.length=64",
    )
    base_command = [
      sys.executable,
      "-m",
      "t5x_like.evaluate",
      f"--workdir={pretrained}",
      "--suite=glue",
      "--tasks=cola",
    ]
    return [
      *base_command,
      f"--data={data}",
      f"--output={tmp_path / name}",
      *(f"--config.{flag}" for flag in flags),
    ]

  code, output = run(killed_at(command("whole"), "never", "", also=NANO), **where)
  assert code == 0, output
  for phase, (event, name) in PHASES.items():
    code, output = run(killed_at(command("parts"), event, name, also=NANO), **where)
    assert code == -9, f"{phase}: {output[-2000:]}"
    assert "Traceback" not in output, f"{phase}: {output[-2000:]}"
  code, output = run(killed_at(command("parts"), "never", "", also=NANO), **where)
  assert code == 0, output
  uninterrupted = contents(tmp_path / "whole")
  parts = contents(tmp_path / "parts")
  assert uninterrupted.keys() == parts.keys()
  assert {"submission/CoLA.tsv", "results.md"} <= uninterrupted.keys()
  for name, scores in uninterrupted.items():
    assert parts[name] == scores, name
  folders = [tmp_path / name / "cola" / "recipe-0" for name in ("whole", "parts")]
  assert losses(folders[0]) == losses(folders[1])
  assert len(losses(folders[0])) == 4
  assert fingerprints(folders[0], 4) == fingerprints(folders[1], 4)
  evaluated = [
    [without_times(row) for row in read_metrics(folder) if "train/loss" not in row]
    for folder in folders
  ]
  assert evaluated[0] == evaluated[1]
  assert len(evaluated[0]) == 2


def contents(output: pathlib.Path) -> dict[str, object]:
  """Return the files of a suite's output by name, without its path and times."""
  files = {}
  for file in sorted(output.rglob("*")):
    name = str(file.relative_to(output))
    if (
      file.suffix in (".json", ".jsonl", ".tsv", ".md")
      and "checkpoints" not in name
      and "best" not in name
    ):
      if file.name not in ("metrics.jsonl", "history.jsonl", "environment.json"):
        text = file.read_text().replace(str(output), "")
        if file.name in ("results.json", "results.md"):
          text = "\n".join(
            line for line in text.splitlines() if "seconds" not in line and "| cola |" not in line
          )
        files[name] = text
  return files


def without_times(row: dict) -> dict:
  return {name: value for name, value in row.items() if not name.endswith("seconds")}
