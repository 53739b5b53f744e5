"""Two programs at one workdir: a second run, an evaluation and a prediction lose nothing."""

import json
import signal

import pytest

import tests.recipes.nano_decoder  # noqa: F401 -- evaluation here knows the variant
from t5x_like import evaluate, predict
from t5x_like.report.writer import read_metrics
from tests import object_server
from tests.runs import Process, assert_same_bits, count_metrics, losses, run_to_end, train

pytestmark = pytest.mark.drill
STEPS = 60
FLAGS = (f"--config.total_steps={STEPS}", "--config.checkpoint.every=5", "--config.eval_every=1000")


@pytest.fixture
def server(tmp_path):
  with object_server.serve(tmp_path / "bucket") as server:
    yield server


@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_after_the_lock_was_deleted_only_the_newcomer_goes_on(where, server, tmp_path):
  """The first run is halted while the second starts, and wakes amid the second's work."""
  cache = {"cache": tmp_path / "compiled"}
  if where == "disk":
    folder = tmp_path / "run"
    lock = "lock"
    command = train(folder, *FLAGS)
  else:
    folder = server.root / "run"
    lock = "lease"
    command = train("gs://bucket/run", *FLAGS)

  def has_committed_step() -> bool:
    return any("tmp" not in path.parent.name for path in folder.glob("checkpoints/*/manifest*"))

  run_to_end(train(tmp_path / "whole", *FLAGS), **cache)
  with Process(command, **cache) as first:
    assert first.until(lambda: count_metrics(folder) >= 10 and has_committed_step()), first.end()
    first.send(signal.SIGSTOP)
    (folder / lock).unlink()
    with Process(command, **cache) as second:
      assert second.until(lambda: "resuming" in second.output_so_far()), second.end()
      first.send(signal.SIGCONT)
      code, output = first.end()
      assert code == 69, output
      assert output.count("another process has taken") == 1, output
      assert "Traceback" not in output, output
      code, output = second.end()
      assert code == 0, output
  assert losses(folder) == losses(tmp_path / "whole")
  if where == "disk":
    assert_same_bits(folder, tmp_path / "whole", STEPS)


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_run_halted_in_its_first_save_leaves_the_next_runs_steps_alone(scheme, server, tmp_path):
  """A second run takes the lease; the first wakes while the second writes its first step."""
  cache = {"cache": tmp_path / "compiled"}
  folder = server.root / "run"
  command = train(f"{scheme}://bucket/run", *FLAGS)

  def attempts() -> list[str]:
    return sorted(path.parent.name for path in folder.glob("checkpoints/5-*/tensors-00000.json"))

  run_to_end(train(tmp_path / "whole", *FLAGS), **cache)
  with Process(command, **cache) as first:
    assert first.until(lambda: attempts()), first.end()
    first.send(signal.SIGSTOP)
    halted = attempts()
    has_committed_step = (folder / "checkpoints" / halted[0] / "manifest.json").exists()
    with Process(command, **cache) as second:
      assert second.until(
        lambda: has_committed_step or len(attempts()) > 1 or count_metrics(folder) > 10
      ), second.end()
      first.send(signal.SIGCONT)
      code, output = first.end()
      assert code == 69, output
      assert output.count("another process has taken") == 1, output
      assert "Traceback" not in output, output
      code, output = second.end()
      assert code == 0, output
      assert "damaged" not in output, output
  output = run_to_end(command, **cache)
  assert "damaged" not in output, output
  assert losses(folder) == losses(tmp_path / "whole")
  for step in folder.glob("checkpoints/*/manifest.json"):
    assert (step.parent / "aside").exists() or (step.parent / "tensors-00000.bin").exists(), step


@pytest.mark.usefixtures("compiled")
def test_evaluation_and_prediction_work_beside_a_run_that_deletes_old_steps(tmp_path, capsys):
  """Each answers from one step or ends in one line; the run does not notice."""
  workdir = tmp_path / "run"
  times = 4
  flags = (
    "--config.total_steps=100000",
    "--config.checkpoint.every=2",
    "--config.checkpoint.keep_last=1",
  )
  flags += ("--config.eval_every=1", "--config.evals.loss.max_examples=8")
  (tmp_path / "lines.txt").write_text("def add(a, b):\nReturns the sum\n")
  codes = []
  rows_by_step = {}
  with Process(train(workdir, *flags, recipe="tests/recipes/nano_decoder.py")) as trains:
    assert trains.until(lambda: count_metrics(workdir) >= 4), trains.end()
    for number in range(times):
      output = tmp_path / f"{number}.jsonl"
      codes.append(evaluate.main([f"--workdir={workdir}"]))
      prediction_flags = (
        f"--input={tmp_path}/lines.txt",
        f"--output={output}",
        "--max_new_tokens=4",
      )
      codes.append(predict.main([f"--workdir={workdir}", *prediction_flags]))
      assert codes[-1] or len(output.read_text().splitlines()) == 2
      errors = capsys.readouterr().err
      assert "Traceback" not in errors, errors
      assert len(errors.splitlines()) <= 2 + errors.count("warning"), errors
    before = count_metrics(workdir)
    assert trains.until(lambda: count_metrics(workdir) > before + 4), trains.end()
    trains.send(signal.SIGTERM)
    code, errors = trains.end()
  assert code == 75, errors
  assert "Traceback" not in errors, errors
  assert "warning" not in errors, errors
  for row in read_metrics(workdir):
    rows_by_step |= {row["step"]: row} if "eval/builtin_causal_lm/loss" in row else {}
  for file in (workdir / "evaluations").glob("*.json"):
    result = json.loads(file.read_text())
    assert result["metrics"]["loss"] == pytest.approx(
      rows_by_step[result["step"]]["eval/builtin_causal_lm/loss"], rel=1e-4
    )
  print(f"codes {codes}")
  assert codes.count(0) >= times
