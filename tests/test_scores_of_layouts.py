"""Scores are equal on every layout, and a suite that was killed ends with the same results.

The layouts are one device, eight devices, and two processes with four devices each. Predictions are
equal too, except for the last digits of fractions.
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

# Its `:debug` defines a model variant, which every process must define from the recipe.
ENCODER = ("--config=configs/bert/base.py:debug", "--config.phases={}")
STEPS = ("--config.total_steps=2", "--config.eval_every=2", "--config.checkpoint.every=2")


def generation_flags(folder) -> list[str]:
  """Return the flags of a text-to-text task with an evaluator that generates."""
  rows = [{"text": f"{n} and {n % 7}", "swapped": f"{n % 7} and {n}"} for n in range(37)]
  (folder / "data").write_text("".join(json.dumps(row) + "\n" for row in rows))
  task = {
    "name": "text_to_text",
    "source": f"jsonl:train={folder}/data,validation={folder}/data",
    "inputs": "{text}",
    "targets": "{swapped}",
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


def image_flags(folder) -> list[str]:
  return [
    "--config=configs/vit/base.py:debug",
    f"--config.task.cache={folder}/cache",
    '--config.evals={"dev": {"name": "image_classification"}}',
  ]


# Evaluator -> a function that writes its data to a folder and returns the flags of its run.
FLAGS_BY_EVALUATOR = {
  "classification": functools.partial(labelled_flags, "classification"),
  "tagging": functools.partial(labelled_flags, "tagging"),
  "span_qa": functools.partial(labelled_flags, "span_qa"),
  "generation": generation_flags,
  "image_classification": image_flags,
}


def evaluate_in_process(command: list[str], workdir, **environment) -> tuple[list, list[float]]:
  """Run `evaluate` as a process.

  Returns:
    [scores, predictions, names of pictures] with None for each fraction in the predictions, and
    these fractions.
  """
  shutil.rmtree(workdir / "evaluations", ignore_errors=True)
  exit_code, output = run(command, **environment)
  assert exit_code == 0, output
  (scores,) = (workdir / "evaluations").glob("*.json")
  (predictions,) = (workdir / "evaluations").glob("*.jsonl")
  fractions: list[float] = []

  def collect_fraction(text: str) -> None:
    fractions.append(float(text))

  rows = []
  for line in predictions.read_text().splitlines():
    rows.append(json.loads(line, parse_float=collect_fraction))
  assert rows
  pictures = {path.name for path in (workdir / "evaluations").glob("pictures/*")}
  return [json.loads(scores.read_text()), rows, pictures], fractions


@pytest.mark.parametrize("evaluator", beyond(0, list(FLAGS_BY_EVALUATOR)))
def test_scores_and_predictions_are_the_same_on_any_layout(evaluator, tmp_path, compiled):
  workdir = tmp_path / "run"
  flags = FLAGS_BY_EVALUATOR[evaluator](tmp_path)
  assert train.main([*flags, f"--workdir={workdir}", *STEPS]) == 0
  command = [sys.executable, "-m", "t5x_like.evaluate", f"--workdir={workdir}"]
  expected, expected_fractions = evaluate_in_process(command, workdir, devices=1, cache=compiled)

  def check_layout(command: list[str], devices: int) -> None:
    actual, fractions = evaluate_in_process(command, workdir, devices=devices, cache=compiled)
    assert actual == expected
    assert fractions == pytest.approx(expected_fractions, abs=1e-5)

  check_layout(command, devices=8)
  check_layout([*LAUNCHER, "--", *command], devices=1)  # the launcher sets the workers' devices


def untimed_table(output) -> list[list[str]]:
  """Return the lines of a suite's table without the seconds that its runs took."""
  lines = [line.split(" | ") for line in (output / "results.md").read_text().splitlines()]
  header = next(line for line in lines if "seconds" in line)
  column = header.index("seconds")
  return [line[:column] + line[column + 1 :] for line in lines]


def untimed_results(output) -> dict:
  """Return a suite's results without the seconds that its runs took."""
  results = json.loads((output / "results.json").read_text())
  for task in results["tasks"].values():
    for record in (task, *task["runs"]):
      assert record["facts"].pop("seconds") > 0
  return results


def write_glue_task(folder, header: str, row: str) -> None:
  """Write the train and dev splits of a task, with numbers and labels filled into a row."""
  folder.mkdir(parents=True)
  rows = [row.format(number=n, label=n % 2) for n in range(32)]
  for split in ("train", "dev"):
    (folder / f"{split}.tsv").write_text(header + "".join(rows))


@pytest.mark.heavy
def test_a_suite_that_is_killed_again_and_again_ends_with_the_same_table(tmp_path, compiled):
  raw = tmp_path / "raw"
  write_glue_task(raw / "CoLA", "", "x\t{label}\t\tsentence {number}\n")
  write_glue_task(raw / "SST-2", "sentence\tlabel\n", "sentence {number}\t{label}\n")
  length = '--config.model.design.position={"name": "learned", "length": 64}'
  base_flags = [*ENCODER, f"--workdir={tmp_path}/base", *STEPS, "--config.evals={}", length]
  assert train.main(base_flags) == 0

  def suite_command(output) -> list[str]:
    return [
      sys.executable,
      "-m",
      "t5x_like.evaluate",
      f"--workdir={tmp_path}/base",
      "--suite=glue",
      f"--data={raw}",
      f"--output={output}",
      "--seeds=2",
      "--config.total_steps=6",
      "--config.batch_size=8",
      "--config.task.length=64",
    ]

  uninterrupted = tmp_path / "uninterrupted"
  killed = tmp_path / "killed"
  start = time.monotonic()
  exit_code, output = run(suite_command(uninterrupted), cache=compiled)
  assert exit_code == 0, output
  seconds = time.monotonic() - start
  for number in range(5):
    wait = random.uniform(0.2, 0.9) * seconds
    print(f"kill {number} after {wait:.1f} s")
    with Process(suite_command(killed), cache=compiled) as process:
      deadline = time.monotonic() + wait

      def is_due(deadline: float = deadline) -> bool:
        return time.monotonic() > deadline

      if not process.until(is_due):
        break  # the suite has ended
      process.send(signal.SIGKILL)
      process.end()
  exit_code, output = run(suite_command(killed), cache=compiled)
  assert exit_code == 0, output
  assert untimed_table(killed) == untimed_table(uninterrupted)
  results_json = json.dumps(untimed_results(killed)).replace(str(killed), str(uninterrupted))
  assert json.loads(results_json) == untimed_results(uninterrupted)
  paths = sorted(
    path.relative_to(uninterrupted) for path in uninterrupted.rglob("predictions/*.jsonl")
  )
  assert len(paths) >= 4
  for path in paths:
    assert (killed / path).read_bytes() == (uninterrupted / path).read_bytes(), path
