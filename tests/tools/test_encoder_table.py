"""The program of `make benchmarks` trains, scores and continues a table of tasks."""

import argparse
import json
import signal
import time

import pytest

from t5x_like.benchmarks import custom_suites
from tests.benchmarks.small_suites import train_encoder, write_cola
from tools import encoder_table

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled", "one_device")]


@pytest.fixture(scope="module")
def root(tmp_path_factory, compiled):
  """Return a directory with CoLA's files in `data` and a small encoder in `out/model`."""
  root = tmp_path_factory.mktemp("root")
  train_encoder(root / "out" / "model")
  write_cola(root / "data", [f"sentence number {n}" for n in range(40)])
  return root


@pytest.mark.more
def test_the_same_command_continues_to_the_same_table(root, capsys):
  flags = [f"--data={root}/data", f"--output={root}/out", f"--model={root}", "--max_steps=2"]
  assert encoder_table.main([*flags, "--only=cola,rte"]) == 0, capsys.readouterr().err
  folder = root / "out" / "trial-2"
  table = (folder / "results.md").read_text()
  results = json.loads((folder / "results.json").read_text())
  assert "| cola |" in table
  assert "| rte | – |" in table
  assert "47.5 MiniLM-L6xH384" in table
  assert "of 3 CPU hours used" in table
  assert results["tasks"]["cola"]["facts"]["steps"] == 2
  spent_seconds = json.loads((folder / "spent.json").read_text())["cpu_seconds"]
  assert spent_seconds > 1
  assert (folder / "results.html").exists()

  (folder / "results.json").unlink()  # as if killed before the table was written
  capsys.readouterr()
  assert encoder_table.main([*flags, "--only=cola,rte"]) == 0
  assert "new run" not in capsys.readouterr().out
  assert json.loads((folder / "results.json").read_text()) == results
  assert json.loads((folder / "spent.json").read_text())["cpu_seconds"] > spent_seconds

  # The budget is spent, so no task is started, but the table stays.
  flags_of_spent_budget = [*flags, "--only=cola,rte", f"--hours={spent_seconds / 3600}"]
  assert encoder_table.main(flags_of_spent_budget) == 0
  assert "$ python" not in capsys.readouterr().out
  assert "| cola |" in (folder / "results.md").read_text()

  # RTE has no files. The table still has every finished task.
  assert encoder_table.main([*flags, "--only=rte"]) == 2
  assert "| cola |" in (folder / "results.md").read_text()


def test_squad_is_read_from_all_its_parts_or_from_one_file(tmp_path):
  args = argparse.Namespace(data=str(tmp_path), max_steps=None, seeds=None)
  for name in ("train-v1.1.a.json", "train-v1.1.b.json.gz", "dev-v1.1.json", "dev-v1.1.a.json"):
    (tmp_path / name).touch()

  def data_flags():
    flags = encoder_table.build_evaluation_flags("squad", args, tmp_path, tmp_path)
    return [flag for flag in flags if flag.startswith("--data=")]

  parts = f"{tmp_path}/train-v1.1.a.json+{tmp_path}/train-v1.1.b.json.gz"
  dev = f"validation={tmp_path}/dev-v1.1.json"
  assert data_flags() == [f"--data=train={parts},{dev}"]
  (tmp_path / "train-v1.1.json.gz").touch()
  assert data_flags() == [f"--data=train={tmp_path}/train-v1.1.json.gz,{dev}"]


def test_a_spent_budget_sends_one_signal_to_a_training_run(tmp_path):
  signals = []
  previous_handler = signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
  try:
    (tmp_path / "spent.json").write_text('{"cpu_seconds": 99.0}')
    with encoder_table.Budget(tmp_path / "spent.json", 99.5) as budget:
      deadline = time.monotonic() + 60
      while not signals and time.monotonic() < deadline:
        sum(range(100_000))  # spends CPU time
      time.sleep(1.5)  # another signal would come within a second
    assert signals == [signal.SIGTERM]
    assert budget.has_signalled
    assert budget.left <= 0
  finally:
    signal.signal(signal.SIGTERM, previous_handler)
  assert json.loads((tmp_path / "spent.json").read_text())["cpu_seconds"] >= 99.5


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--only=colla"], "--only: found 'colla', expected some of rte, cola"),
    (["--max_steps=1"], "--max_steps at least 2"),
    (["--hours=nan"], "--hours: expected more than 0"),
    (["--seeds=0"], "--seeds at least 1"),
    (["--data=nowhere"], "--data=nowhere: found no directory"),
  ],
)
def test_bad_flags_are_refused_in_one_line(flags, message, tmp_path, capsys):
  assert encoder_table.main([f"--data={tmp_path}", f"--output={tmp_path}/out", *flags]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert message in line


def test_every_task_of_the_suite_has_an_encoder_form_and_a_schedule():
  tasks = custom_suites.load_suite(str(encoder_table.SUITE)).tasks
  assert list(tasks) == ["rte", "cola", "stsb", "ner", "mrpc", "qqp", "pos", "sst2", "squad"]
  for name, task in tasks.items():
    assert task.encoder and task.epochs and task.rates, name
  assert tasks["squad"].config == {"task.length": 192, "task.stride": 64, "batch_size": 12}
