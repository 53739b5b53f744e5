"""The loop saves before it evaluates, and each start is recorded in the history."""

import json
import os
import pathlib
import signal
import types

import pytest

import json_lines
import more
from t5x_like import train
from t5x_like.errors import Preempted
from t5x_like.evals.loss import Evaluator
from t5x_like.report.writer import read_metrics
from t5x_like.training import evaluation, loop
from t5x_like.training.guard import RolledBack
from t5x_like.training.run import TrainingRun
from tests.runs import NANO, fingerprints, losses, steps

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]


FLAGS = (
  f"--config={NANO}",
  "--config.total_steps=6",
  "--config.checkpoint.every=2",
  "--config.checkpoint.keep_last=9",
  "--config.eval_every=2",
  "--config.evals.loss.max_examples=8",
)


def train_run(workdir, *flags) -> int:
  return train.main([*FLAGS, f"--workdir={workdir}", *flags])


def evaluated_rows(workdir) -> list[dict]:
  """Return the metrics of the steps with evaluations, without times."""
  rows = []
  for row in read_metrics(workdir):
    if any(name.startswith("eval/") for name in row):
      rows.append({name: x for name, x in row.items() if not name.endswith("/seconds")})
  return rows


def evaluated_steps(workdir) -> list[int]:
  return [row["step"] for row in evaluated_rows(workdir)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, compiled):
  workdir = tmp_path_factory.mktemp("uninterrupted")
  assert train_run(workdir) == 0
  assert evaluated_steps(workdir) == [2, 4, 6]
  return workdir


def resume_and_compare(uninterrupted, workdir):
  """Resume a run; assert that its results equal an uninterrupted run's."""
  assert train_run(workdir) == 0
  assert losses(workdir) == losses(uninterrupted)
  assert evaluated_rows(workdir) == evaluated_rows(uninterrupted)
  assert fingerprints(workdir, 6) == fingerprints(uninterrupted, 6)


@pytest.mark.more
def test_evaluator_that_raises_loses_no_checkpoint(uninterrupted, tmp_path, monkeypatch):
  call = evaluation.Evaluation.__call__
  calls = []

  def fail_at_the_second_call(self, arrays, steps_to_save):
    calls.append(arrays)
    if len(calls) == 2:
      raise RuntimeError("the evaluator is broken")
    return call(self, arrays, steps_to_save)

  monkeypatch.setattr(evaluation.Evaluation, "__call__", fail_at_the_second_call)
  with pytest.raises(RuntimeError, match="the evaluator is broken"):
    train_run(tmp_path)
  assert steps(tmp_path)[-1] == 4
  assert evaluated_steps(tmp_path) == [2]
  monkeypatch.undo()
  resume_and_compare(uninterrupted, tmp_path)


@pytest.mark.parametrize(
  ("moment", "step"), more.beyond(1, [("evaluate", 4), ("evaluate", 6), ("advance", 6)])
)
def test_signal_does_not_wait_for_an_evaluation(moment, step, uninterrupted, tmp_path, monkeypatch):
  """The signal arrives after a step, or during the evaluation of a step that need not be saved."""
  advance = TrainingRun.advance
  evaluate = Evaluator.__call__
  last_step = [0]

  def advance_and_signal(self):
    advance(self)
    last_step[0] = self.step
    if moment == "advance" and self.step == step:
      os.kill(os.getpid(), signal.SIGTERM)

  def signal_and_evaluate(self, arrays):
    if moment == "evaluate" and last_step[0] == step:
      os.kill(os.getpid(), signal.SIGTERM)
    return evaluate(self, arrays)

  monkeypatch.setattr(TrainingRun, "advance", advance_and_signal)
  monkeypatch.setattr(Evaluator, "__call__", signal_and_evaluate)
  assert train_run(tmp_path, "--config.checkpoint.every=3") == 75
  assert steps(tmp_path)[-1] == step
  assert step not in evaluated_steps(tmp_path)
  monkeypatch.undo()
  resume_and_compare(uninterrupted, tmp_path)


@pytest.mark.more
def test_every_start_adds_a_line_to_history(tmp_path):
  for total in (2, 2, 4):
    assert train_run(tmp_path, "--config.evals={}", f"--config.total_steps={total}") == 0
  rows = [row for row in json_lines.read(tmp_path / "history.jsonl") if "changes" in row]
  assert [row["step"] for row in rows] == [0, 2, 2]
  assert [row["changes"] for row in rows] == [[], [], ["total_steps: 2 -> 4"]]
  first, second, third = rows
  assert first["config"]["total_steps"] == 2
  assert second["config_digest"] == first["config_digest"]
  assert "config" not in second
  assert third["config_digest"] != first["config_digest"]
  assert third["config"] == json.loads((tmp_path / "config.json").read_text())
  assert third["environment"] == json.loads((tmp_path / "environment.json").read_text())
  assert first["time"] <= second["time"] <= third["time"]


class ScriptedRun:
  """A stand-in for a training run that records the calls of the loop.

  Updates of some steps are refused once, which returns the run to its newest saved step.
  """

  is_out_of_patience = False

  def __init__(self, refused: list[int], signalled: int | None = None):
    self.refused = refused
    self.signalled = signalled
    self.step = 0
    self.pending = None
    self.calls = []
    self.session = types.SimpleNamespace(
      saved=0, address="here", workdir=pathlib.Path("here"), wait_for_save=lambda: None
    )
    options = types.SimpleNamespace(every=3, minutes=None)
    self.config = types.SimpleNamespace(eval_every=4, total_steps=8, checkpoint=options)

  def _write(self, pending) -> None:
    if pending not in self.refused:
      return
    self.refused.remove(pending)
    self.step = self.session.saved
    self.pending = None
    self.calls.append(f"back to {self.step}")
    raise RolledBack

  def advance(self) -> None:
    previous = self.pending
    self.pending = self.step + 1
    self.step += 1
    if self.step == self.signalled:
      os.kill(os.getpid(), signal.SIGTERM)
    self._write(previous)

  def drain(self) -> None:
    previous = self.pending
    self.pending = None
    self._write(previous)

  def save(self) -> None:
    assert self.pending is None, "the metrics of a step that is saved are written"
    if self.session.saved != self.step:
      self.session.saved = self.step
      self.calls.append(f"save {self.step}")

  def evaluate(self, steps_to_save) -> bool:
    assert self.pending is None
    assert not steps_to_save()
    self.calls.append(f"evaluate {self.step}")
    return True

  def has_evaluation(self) -> bool:
    return f"evaluate {self.step}" in self.calls

  def finish(self) -> None:
    self.calls.append("finish")


@pytest.mark.parametrize(
  ("refused", "expected"),
  [
    ([], "save 3, evaluate 4, save 6, save 8, evaluate 8, finish"),
    # The refusal is read while step 2 runs.
    ([1], "back to 0, save 3, evaluate 4, save 6, save 8, evaluate 8, finish"),
    ([3], "back to 0, save 3, evaluate 4, save 6, save 8, evaluate 8, finish"),  # before a save
    # Before an evaluation.
    ([4], "save 3, back to 3, evaluate 4, save 6, save 8, evaluate 8, finish"),
    ([8], "save 3, evaluate 4, save 6, back to 6, save 8, evaluate 8, finish"),  # at the end
  ],
)
def test_refused_update_returns_the_loop_to_the_newest_saved_step(refused, expected):
  run = ScriptedRun(refused)
  loop.train(run)
  assert ", ".join(run.calls) == expected


@pytest.mark.parametrize(
  ("window", "expected"),
  [
    (range(4, 5), "save 3, start, step 4, stop, evaluate 4, save 6, save 8, evaluate 8, finish"),
    (
      range(5, 7),
      "save 3, evaluate 4, start, step 5, step 6, stop, save 6, save 8, evaluate 8, finish",
    ),
    (range(8, 20), "save 3, evaluate 4, save 6, start, step 8, stop, save 8, evaluate 8, finish"),
  ],
)
def test_profile_covers_the_steps_of_its_window(window, expected, monkeypatch):
  run = ScriptedRun([])
  monkeypatch.setattr("jax.profiler.start_trace", lambda folder: run.calls.append("start"))
  monkeypatch.setattr("jax.profiler.stop_trace", lambda: run.calls.append("stop"))
  advance = run.advance

  def record_and_advance():
    if "start" in run.calls and "stop" not in run.calls:
      run.calls.append(f"step {run.step + 1}")
    advance()

  run.advance = record_and_advance
  loop.train(run, profile=window)
  assert ", ".join(run.calls) == expected


@pytest.mark.parametrize(("refused", "saved"), [([], 5), ([5], 3)])
def test_signal_saves_the_current_step_or_the_one_after_a_rollback(refused, saved):
  run = ScriptedRun(refused, signalled=5)
  with pytest.raises(Preempted, match=f"saved step {saved} of 8 in here"):
    loop.train(run)
  assert run.session.saved == saved
  assert "finish" not in run.calls
