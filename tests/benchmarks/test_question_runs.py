"""Suites of questions are asked of real models, killed, repeated, compared and followed by step."""

import json
import pathlib
import signal

import pytest

import json_lines
import tests.recipes.nano_decoder  # noqa: F401 -- registers the variant of the recipe
from t5x_like import evaluate, train
from tests.benchmarks.questions import NUMBER, command, program, read_table, write_questions
from tests.runs import LAUNCHER, Process, hide_other_devices, run_to_end

RECIPE = "tests/recipes/nano_decoder.py"
KILLS = 6

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]


@pytest.fixture(scope="module")
def model(tmp_path_factory, compiled):
  workdir = tmp_path_factory.mktemp("model") / "gpt"
  flags = (
    "--config.total_steps=4",
    "--config.checkpoint.every=2",
    "--config.checkpoint.keep_last=3",
    "--config.model.design.position.length=512",
    "--config.batch_size=8",
  )
  with hide_other_devices():
    assert train.main([f"--config={RECIPE}", f"--workdir={workdir}", *flags]) == 0
  return workdir


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> pathlib.Path:
  return write_questions(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(model, data, tmp_path_factory) -> pathlib.Path:
  output = tmp_path_factory.mktemp("whole") / "table"
  with hide_other_devices():
    assert evaluate.main(command(model, data, output)) == 0
  return output


def test_a_table_has_the_files_that_are_there_with_intervals(whole):
  tasks = read_table(whole)
  assert tasks.keys() == {"copa", "winograd", "lambada_openai"}
  for result in tasks.values():
    interval = result["intervals"]["0-shot/accuracy"]
    assert interval["low"] <= result["score"] <= interval["high"]
  rows = json_lines.read(whole / "by_question" / "copa.jsonl")
  assert sum(row["right"] for row in rows) / NUMBER * 100 == pytest.approx(tasks["copa"]["score"])
  text = (whole / "results.md").read_text()
  assert "| jeopardy | – | | | | found no world_knowledge/jeopardy_all.jsonl or" in text
  assert "core version 1, of which questions are left out: no summary" in text


@pytest.mark.more
def test_a_suite_killed_at_random_moments_asks_no_question_twice(model, data, whole, tmp_path):
  from tests.drills.moments import seeded_random

  drawn = seeded_random("a suite of questions is killed")
  log = tmp_path / "table" / "answers.jsonl"
  flags = command(model, data, tmp_path / "table")

  def count_answers() -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0

  total = len(json_lines.read(whole / "answers.jsonl"))
  kills = 0
  for number in range(KILLS):
    target = count_answers() + drawn.randrange(1, 2 * (total - count_answers()) // (KILLS - number))
    with Process(program(flags)) as process:
      is_alive = process.until(lambda target=target: count_answers() >= target)
      process.send(signal.SIGKILL)
      process.end()
    kills += is_alive
    if number == KILLS // 2:  # a loss of power may also cut the last line
      log.write_bytes(log.read_bytes()[:-7])
  assert kills >= 2
  run_to_end(program(flags))
  keys = [row["key"] for row in json_lines.read(log)]
  assert len(keys) == len(set(keys)) == total
  assert read_table(tmp_path / "table") == read_table(whole)


def test_the_same_command_asks_nothing_again_and_another_checkpoint_everything(
  model, data, whole, capsys
):
  table = read_table(whole)
  size = (whole / "answers.jsonl").stat().st_size
  with hide_other_devices():
    assert evaluate.main(command(model, data, whole)) == 0
  output = capsys.readouterr().out
  assert f"core/copa: 0-shot: asked 0 of {NUMBER} questions" in output
  assert read_table(whole) == table
  assert (whole / "answers.jsonl").stat().st_size == size
  with hide_other_devices():
    assert evaluate.main([*command(model, data, whole), "--step=2", "--tasks=winograd"]) == 0
  assert "core/winograd: 0-shot: asked 40 of 40 questions" in capsys.readouterr().out


@pytest.mark.more
def test_two_processes_on_a_mesh_of_eight_devices_make_the_same_table(model, data, whole, tmp_path):
  run_to_end([*LAUNCHER, "--", *program(command(model, data, tmp_path / "table"))])
  actual = read_table(tmp_path / "table")
  expected = read_table(whole)
  for task, result in expected.items():
    assert actual[task]["score"] == result["score"]
    assert actual[task]["intervals"] == result["intervals"]
  keys = {row["key"] for row in json_lines.read(tmp_path / "table" / "answers.jsonl")}
  assert keys == {row["key"] for row in json_lines.read(whole / "answers.jsonl")}


def test_a_suite_at_steps_of_a_run_is_in_its_report(model, data, tmp_path, capsys):
  flags = [f"--workdir={model}", "--suite=core", "--tasks=winograd", f"--data={data}", "--every=2"]
  with hide_other_devices():
    assert evaluate.main(flags) == 0, capsys.readouterr().err
  table = json.loads((model / "suites" / "core" / "steps.json").read_text())
  assert table["steps"] == [2, 4]
  assert len(table["tasks"]["winograd"]) == 2
  for score, interval in zip(table["tasks"]["winograd"], table["intervals"]["winograd"]):
    assert interval["low"] <= score <= interval["high"]
  page = (model / "report.html").read_text()
  assert "Suite by step: core" in page
  assert "core by step" in page
  capsys.readouterr()
  with hide_other_devices():
    assert evaluate.main(flags) == 0
  assert "=== checkpoint" not in capsys.readouterr().out


@pytest.mark.parametrize(
  ("flags", "words"),
  [
    (["--suite=core"], "--suite=core: needs language_understanding/hellaswag.jsonl; give the dir"),
    (["--suite=core", "--seeds=2"], "--seeds: only for suites that are learned"),
    (["--suite=core", "--config.batch_size=4"], "--config.batch_size: only for suites that are"),
    (["--suite=core", "--tasks=copper"], "found 'copper', expected some of hellaswag_zeroshot"),
    (["--suite=core", "--every=2", "--steps=2"], "--steps, --every: both name the checkpoints"),
    (["--suite=core", "--template=plain"], "--template: only for --questions"),
  ],
)
def test_a_flag_that_a_suite_of_questions_cannot_use_is_refused(flags, words, model, capsys):
  assert evaluate.main([f"--workdir={model}", *flags]) == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert words in error
