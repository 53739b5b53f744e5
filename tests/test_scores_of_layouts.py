"""Scores are equal on any layout, and a killed suite ends with the table of one that is not killed.

The layouts are one device, eight, and two processes with four each. Predictions are equal too, but
for the last digits of fractions.
"""

import functools
import json
import random
import shutil
import signal
import sys
import time

import pytest

from fine_tuning import fine_tuning
from more import beyond
from t5x_like import train
from tests.runs import LAUNCHER, Process, run

# a recipe whose variant is known in every process
ENCODER = ("--config=configs/bert/base.py:debug", "--config.phases={}")
STEPS = ("--config.total_steps=2", "--config.eval_every=2", "--config.checkpoint.every=2")


def generation(folder) -> list[str]:
  """Return the flags of a text-to-text task with an evaluator that generates."""
  rows = [{"text": f"{n} and {n % 7}", "turned": f"{n % 7} and {n}"} for n in range(37)]
  (folder / "data").write_text("".join(json.dumps(row) + "\n" for row in rows))
  task = {
    "name": "text_to_text",
    "source": f"jsonl:train={folder}/data,validation={folder}/data",
    "inputs": "{text}",
    "targets": "{turned}",
    "inputs_length": 32,
    "targets_length": 16,
    "cache": f"{folder}/cache",
  }
  evals = {"dev": {"name": "generation", "metrics": ["exact", "answers", "chrf"]}}
  return [
    "--config=configs/t5/base.py:debug",
    f"--config.task={json.dumps(task)}",
    f"--config.evals={json.dumps(evals)}",
  ]


def labelled_flags(objective: str, folder) -> list[str]:
  overrides = [f"--config.{override}" for override in fine_tuning(objective, folder)]
  return [*ENCODER, *overrides, f'--config.evals={{"dev": {{"name": "{objective}"}}}}']


def pictures(folder) -> list[str]:
  return [
    "--config=configs/vit/base.py:debug",
    f"--config.task.cache={folder}/cache",
    '--config.evals={"dev": {"name": "image_classification"}}',
  ]


# a name: a function from a folder to the flags of a run
KINDS = {
  "classification": functools.partial(labelled_flags, "classification"),
  "tagging": functools.partial(labelled_flags, "tagging"),
  "span_qa": functools.partial(labelled_flags, "span_qa"),
  "generation": generation,
  "image_classification": pictures,
}


def evaluate_in_process(command: list[str], workdir, **where) -> tuple[list, list[float]]:
  """Run `evaluate` as a process; return its scores and predictions, and their fractions apart."""
  shutil.rmtree(workdir / "evaluations", ignore_errors=True)
  code, output = run(command, **where)
  assert code == 0, output
  (scores,) = (workdir / "evaluations").glob("*.json")
  (predictions,) = (workdir / "evaluations").glob("*.jsonl")
  fractions: list[float] = []

  def move_fraction(text: str) -> None:
    fractions.append(float(text))

  rows = []
  for line in predictions.read_text().splitlines():
    rows.append(json.loads(line, parse_float=move_fraction))
  assert rows
  return [json.loads(scores.read_text()), rows], fractions


@pytest.mark.parametrize("kind", beyond(0, list(KINDS)))
def test_scores_and_predictions_are_the_same_on_any_layout(kind, tmp_path, compiled):
  workdir = tmp_path / "run"
  assert train.main([*KINDS[kind](tmp_path), f"--workdir={workdir}", *STEPS]) == 0
  command = [sys.executable, "-m", "t5x_like.evaluate", f"--workdir={workdir}"]
  expected, fractions = evaluate_in_process(command, workdir, devices=1, cache=compiled)
  for layout in (command, {"devices": 8}), ([*LAUNCHER, "--", *command], {}):
    actual, numbers = evaluate_in_process(layout[0], workdir, **layout[1], cache=compiled)
    assert actual == expected
    assert numbers == pytest.approx(fractions, abs=1e-5)


def untimed_table(output) -> list[list[str]]:
  """The lines of a suite's table without the seconds that its runs took."""
  lines = [line.split(" | ") for line in (output / "results.md").read_text().splitlines()]
  place = next(line for line in lines if "seconds" in line).index("seconds")
  return [line[:place] + line[place + 1 :] for line in lines]


def untimed_results(output) -> dict:
  results = json.loads((output / "results.json").read_text())
  for task in results["tasks"].values():
    for record in (task, *task["runs"]):
      assert record["facts"].pop("seconds") > 0
  return results


@pytest.mark.heavy
def test_a_suite_that_is_killed_again_and_again_ends_with_the_same_table(tmp_path, compiled):
  for task, rows in (("CoLA", "x\t{1}\t\tsentence {0}\n"), ("SST-2", "sentence {0}\t{1}\n")):
    raw = tmp_path / "raw" / task
    raw.mkdir(parents=True)
    lines = [rows.format(n, n % 2) for n in range(32)]
    for split in ("train", "dev"):
      (raw / f"{split}.tsv").write_text("".join(["sentence\tlabel\n"] * (task == "SST-2") + lines))
  length = '--config.model.design.position={"name": "learned", "length": 64}'
  base = [*ENCODER, f"--workdir={tmp_path}/base", *STEPS, "--config.evals={}", length]
  assert train.main(base) == 0

  def suite(output):
    flags = (
      "--seeds=2",
      "--config.total_steps=6",
      "--config.batch_size=8",
      "--config.task.length=64",
    )
    suite_flags = [
      f"--workdir={tmp_path}/base",
      "--suite=glue",
      f"--data={tmp_path}/raw",
      f"--output={output}",
    ]
    return [sys.executable, "-m", "t5x_like.evaluate", *suite_flags, *flags]

  began = time.monotonic()
  code, said = run(suite(tmp_path / "whole"), cache=compiled)
  assert code == 0, said
  seconds = time.monotonic() - began
  for kill in range(5):
    wait = random.uniform(0.2, 0.9) * seconds
    print(f"kill {kill} after {wait:.1f} s")
    with Process(suite(tmp_path / "killed"), cache=compiled) as process:
      deadline = time.monotonic() + wait
      if not process.until(lambda deadline=deadline: time.monotonic() > deadline):
        break
      process.send(signal.SIGKILL)
      process.end()
  code, said = run(suite(tmp_path / "killed"), cache=compiled)
  assert code == 0, said
  first = tmp_path / "whole"
  second = tmp_path / "killed"
  assert untimed_table(second) == untimed_table(first)
  assert json.loads(
    json.dumps(untimed_results(second)).replace(str(second), str(first))
  ) == untimed_results(first)
  predicted = sorted(path.relative_to(first) for path in first.rglob("predictions/*.jsonl"))
  assert len(predicted) >= 4
  for path in predicted:
    assert (second / path).read_bytes() == (first / path).read_bytes(), path
