"""A suite of questions that is killed at random moments asks no question twice.

It runs on 1, 2 and 4 processes in turn, and ends with the table of a suite that is not killed.
`T5X_LIKE_KILLS=100` kills it 100 times.
"""

import collections
import os
import pathlib
import random
import signal
import sys
import time

import pytest

import json_lines
from tests.benchmarks.questions import command, program, read_table, write_questions
from tests.drills.moments import kills, seeded_random
from tests.runs import Process, run_to_end, train

pytestmark = pytest.mark.drill
PROCESSES = (1, 2, 4)
LATEST_EARLY_KILL = 20  # seconds, about the time until the first answer


def on_processes(count: int, flags: list[str]) -> list[str]:
  """Return the command of a suite on a number of processes."""
  if count == 1:
    return program(flags)
  options = (f"--processes={count}", "--devices_per_process=1", "--grace_seconds=5")
  return [sys.executable, "launch/local.py", *options, "--", *program(flags)]


def count_answers(log: pathlib.Path) -> int:
  return log.read_bytes().count(b"\n") if log.exists() else 0


def kill_once(
  count: int, flags: list[str], log: pathlib.Path, most: int, draw: random.Random, options: dict
) -> str:
  """Run a suite on some processes and kill one of them; return `starting` or `asking`.

  Args:
    log: the file of answers.
    most: the most answers to wait for; a quarter of the kills waits for a time instead.
    options: the options of the process.
  """
  before = count_answers(log)
  target = before + draw.randint(1, most)
  is_early = draw.random() < 0.25
  latest = time.monotonic() + (draw.uniform(0, LATEST_EARLY_KILL) if is_early else 600)
  with Process(on_processes(count, flags), **options) as process:
    is_alive = process.until(lambda: count_answers(log) >= target or time.monotonic() > latest)
    assert is_alive, process.end()
    workers = process.children() if count > 1 else []
    os.kill(draw.choice([process.pid, *workers]), signal.SIGKILL)
    code, output = process.end()
  assert code != 0, output
  return "asking" if count_answers(log) > before else "starting"


def test_killed_questions_are_asked_once_on_any_number_of_processes(tmp_path, capsys):
  options = {"cache": tmp_path / "compiled"}
  model = tmp_path / "gpt"
  recipe_flags = (
    "--config.total_steps=2",
    "--config.checkpoint.every=2",
    "--config.batch_size=8",
    "--config.model.design.position.length=512",
  )
  run_to_end(train(model, *recipe_flags, recipe="tests/recipes/nano_decoder.py"), **options)
  (tmp_path / "data").mkdir()
  data = write_questions(tmp_path / "data")
  run_to_end(program(command(model, data, tmp_path / "whole")), **options)
  total = len(json_lines.read(tmp_path / "whole" / "answers.jsonl"))

  log = tmp_path / "killed" / "answers.jsonl"
  flags = command(model, data, tmp_path / "killed")
  num_kills = kills(20)
  with capsys.disabled():
    draw = seeded_random("a suite of questions")
  moments = collections.Counter()
  for number in range(num_kills):
    count = PROCESSES[number % len(PROCESSES)]
    share = max(1, (total - count_answers(log)) // (num_kills - number))
    moments[count, kill_once(count, flags, log, share, draw, options)] += 1
  assert count_answers(log) < total

  run_to_end(program(flags), **options)
  keys = [row["key"] for row in json_lines.read(log)]
  assert len(keys) == len(set(keys)) == total
  actual = read_table(tmp_path / "killed")
  for task, result in read_table(tmp_path / "whole").items():
    assert actual[task]["score"] == result["score"]
    assert actual[task]["intervals"] == result["intervals"]
  with capsys.disabled():
    print(f"a suite of questions: {total} answers, each asked once; kills by processes: {moments}")
