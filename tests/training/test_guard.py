"""A run stops at a non-finite update, skips it or rolls back, and resumes with the same bits."""

import dataclasses
import os
import signal
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import json_lines
from refusals import refuses
from t5x_like import slots, train, trust
from t5x_like.errors import NumericError
from t5x_like.report.writer import read_metrics
from t5x_like.training import phases
from t5x_like.training.guard import (
  GUARDS,
  Guard,
  RefusedSteps,
  new_loss_record,
  refusal_reason,
  rollback_target,
)
from t5x_like.training.run import TrainingRun
from tests.runs import NANO, fingerprints, losses, steps

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]
POISONED_BATCH = 4  # has NaN weights; step 5 trains on it
TOTAL_STEPS = 10


def train_on_poisoned_data(workdir, *flags, stop_at: int = 0) -> tuple[int, list[int]]:
  """Train with one poisoned batch; return (exit code, numbers of the batches read).

  Args:
    stop_at: send SIGTERM after this many steps.
  """
  batch_numbers = []
  batches = phases.iterate_batches
  advance = TrainingRun.advance
  calls = []

  def poison_one_batch(tasks, position, rows):
    for number, batch in enumerate(batches(tasks, position, rows), start=position):
      batch_numbers.append(number)
      weights = batch["decoder_loss_weights"]
      if number == POISONED_BATCH:
        batch = batch | {"decoder_loss_weights": weights * np.float32(np.nan)}
      yield batch

  def advance_and_signal(self):
    calls.append(self.step)
    try:
      return advance(self)
    finally:
      if len(calls) == stop_at:
        os.kill(os.getpid(), signal.SIGTERM)

  shared = (
    f"--config.total_steps={TOTAL_STEPS}",
    "--config.checkpoint.every=2",
    "--config.evals={}",
  )
  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(phases, "iterate_batches", poison_one_batch)
    patched.setattr(TrainingRun, "advance", advance_and_signal)
    argv = [
      f"--config={NANO}",
      f"--workdir={workdir}",
      *shared,
      "--config.checkpoint.keep_last=20",
      *flags,
    ]
    return train.main(argv), batch_numbers


@dataclasses.dataclass(frozen=True)
class Tracker:
  """A tracker that writes the outcome of each start to a file."""

  def open(self, workdir, name, step, config):
    outcomes = workdir / "outcomes"

    def write_outcome(outcome):
      with outcomes.open("a") as file:
        file.write(f"{outcome}\n")

    return types.SimpleNamespace(write=lambda *_: None, flush=lambda: None, close=write_outcome)


SKIP = ("--config.guard.name=skip",)
ROLLBACK = ('--config.guard={"name": "rollback", "steps": 2}',)


def test_run_stops_before_saving_a_nan_and_can_skip_the_batch(tmp_path, capsys):
  tracker = '--config.trackers={"mine": {"name": "tests.training.test_guard:Tracker"}}'
  assert train_on_poisoned_data(tmp_path, tracker)[0] == 3
  assert steps(tmp_path) == [2, 4]
  errors = capsys.readouterr().err
  assert "numeric error: train/loss is nan at step 5; the newest step saved is 4; lower" in errors
  assert train_on_poisoned_data(tmp_path, tracker, *SKIP)[0] == 0
  assert (tmp_path / "outcomes").read_text() == "failed\nfinished\n"
  assert "step 5: train/loss is nan; this update was left out" in capsys.readouterr().out
  loss_by_step = dict(losses(tmp_path))
  assert [s for s, x in loss_by_step.items() if x is None] == [5]
  assert steps(tmp_path) == [2, 4, 6, 8, 10]
  refused = [row["train/updates_refused"] for row in read_metrics(tmp_path)]
  assert refused == [0] * 4 + [1] + [0] * 5  # only step 5


@pytest.mark.more
def test_rollback_returns_to_a_checkpoint_and_continues_with_later_batches(tmp_path, capsys):
  code, batch_numbers = train_on_poisoned_data(tmp_path, *ROLLBACK)
  assert code == 0
  assert "back to step 2, continuing with the batches of step 6" in capsys.readouterr().out
  assert batch_numbers == [*range(6), *range(5, 13)]
  assert [s for s, _ in losses(tmp_path)] == list(range(1, TOTAL_STEPS + 1))
  assert all(x is not None for _, x in losses(tmp_path))
  assert (tmp_path / "checkpoints" / "4.rolled_back").is_dir()
  (row,) = [row for row in json_lines.read(tmp_path / "history.jsonl") if "rollback" in row]
  assert (row["from"], row["step"], row["batches_passed"]) == (5, 2, 3)


def test_rollback_beyond_the_kept_checkpoints_is_refused(tmp_path, capsys):
  guard = '--config.guard={"name": "rollback", "steps": 7}'
  assert train_on_poisoned_data(tmp_path, guard, "--config.checkpoint.keep_last=4")[0] == 2
  assert "config.guard.steps: found 7, expected at most 6" in capsys.readouterr().err


@pytest.mark.heavy
@pytest.mark.parametrize("flags", [SKIP, ROLLBACK], ids=["skip", "rollback"])
def test_run_that_is_stopped_at_any_step_ends_with_the_same_bits(flags, tmp_path):
  assert train_on_poisoned_data(tmp_path / "whole", *flags)[0] == 0
  for stop_at in (3, 5, 6, 7, 9):
    workdir = tmp_path / str(stop_at)
    assert train_on_poisoned_data(workdir, *flags, stop_at=stop_at)[0] == 75
    assert train_on_poisoned_data(workdir, *flags)[0] == 0
    assert losses(workdir) == losses(tmp_path / "whole")
    assert fingerprints(workdir, TOTAL_STEPS) == fingerprints(tmp_path / "whole", TOTAL_STEPS)


@pytest.mark.more
def test_from_step_takes_effect_once(tmp_path, capsys):
  clean = ("--config.total_steps=4",)
  assert train_on_poisoned_data(tmp_path, *clean)[0] == 0
  before = fingerprints(tmp_path, 4)
  assert train_on_poisoned_data(tmp_path, *clean, "--from_step=3")[0] == 2
  assert "no checkpoint of step 3; steps here: [2, 4]" in capsys.readouterr().err
  assert train_on_poisoned_data(tmp_path, *clean, "--from_step=2")[0] == 0
  assert "from step 2 of 4" in capsys.readouterr().out
  assert fingerprints(tmp_path, 4) == before
  assert (tmp_path / "checkpoints" / "4.set_aside").is_dir()
  assert train_on_poisoned_data(tmp_path, *clean, "--from_step=2")[0] == 0
  assert "is finished at step 4" in capsys.readouterr().out
  rows = [row for row in json_lines.read(tmp_path / "history.jsonl") if "changes" in row]
  assert [(row["step"], row.get("from_step")) for row in rows] == [(0, None), (2, 2), (4, 2)]


def judge_updates(guard, losses, norms=None):
  """Yield (whether a guard accepts an update, its record of losses) for each update."""
  judge = jax.jit(guard.judge)
  state = new_loss_record()
  if norms is None:
    norms = np.ones(len(losses))
  for loss, norm in zip(losses, norms, strict=True):
    accepted, state = judge(state, np.float32(loss), np.float32(norm))
    yield bool(accepted), state


@pytest.mark.parametrize(
  "guard", [Guard(), GUARDS["skip"](spike=1.5, window=5)], ids=["plain", "spikes"]
)
def test_verdicts_equal_plain_python(guard):
  values = np.random.default_rng(0).uniform(1, 1.4, 60)
  values[[3, 20, 21, 40]] = 2.5
  values[[30, 45]] = [np.nan, np.inf]
  norms = np.ones(60)
  norms[50] = np.inf
  mean = 0.0
  accepted_before = 0
  refused = 0
  verdicts = judge_updates(guard, values, norms)
  for (accepted, state), loss, norm in zip(verdicts, values, norms, strict=True):
    expected = bool(np.isfinite(loss) and np.isfinite(norm))
    if guard.spike and accepted_before >= guard.window and loss > guard.spike * mean:
      expected = False
    if expected:
      accepted_before = accepted_before + 1
      refused = 0
      mean += (float(loss) - mean) / min(accepted_before, guard.window)
    else:
      refused += 1
    assert accepted is expected
    assert int(state["refused"]) == refused
    assert float(state["mean_loss"]) == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize(
  "mean, jitter, spike",
  [(-1, 0.01, 50), (-1000, 10, 1e5), (0, 1, 50), (-1e-3, 1e-4, 1), (2, 0.3, 9), (0, 0, 0)],
)
def test_spikes_are_recognised_for_losses_of_any_sign(mean, jitter, spike):
  losses = mean + jitter * np.sin(np.arange(60))
  losses[40] = spike
  verdicts = judge_updates(GUARDS["skip"](spike=2.0, window=10), losses)
  refused = [step for step, (accepted, _) in enumerate(verdicts) if not accepted]
  assert refused == ([40] if spike else [])


@dataclasses.dataclass(frozen=True)
class Steep(Guard):
  """Refuses updates with a long gradient."""

  def judge(self, watch, loss, gradient_norm):
    return super().judge(watch, jnp.where(gradient_norm <= 1, loss, jnp.inf), gradient_norm)

  def describe_refusal(self, values):
    return f"a gradient of {values['gradient_norm']:g}"


def steep(*, limit: int = 3) -> Guard:
  return Steep(skips=True, limit=limit)


def test_user_guard_is_named_by_its_module():
  """It is imported only if the command names it, and its reason is in the message."""
  values = {"name": f"{__name__}:steep", "limit": 5}
  trust.admit(values)
  guard = slots.make("config.guard", values, GUARDS)
  assert guard.limit == 5
  accepted, _ = guard.judge(new_loss_record(), jnp.float32(2), jnp.float32(3))
  assert not accepted
  metrics = {"loss": 2.0, "gradient_norm": 3.0, "parameter_norm": 1.0, "updates_refused": 1}
  assert refusal_reason(guard, metrics) == "a gradient of 3"
  with refuses("config.guard: found 'os:system', which this command does not name"):
    slots.make("config.guard", {"name": "os:system"}, GUARDS)


def test_guard_that_refuses_every_second_update_ends_the_run():
  guard = GUARDS["skip"](max_consecutive=10)
  refusals = RefusedSteps(guard, [])
  reasons = {step: refusals.add(step) for step in range(2, 54, 2)}
  assert [step for step, reason in reasons.items() if reason] == [52]
  assert reasons[52] == "26 of the last 52 updates were left out"
  resumed = RefusedSteps(guard, range(2, 50, 2))
  assert resumed.add(50) is None
  assert resumed.add(52) == reasons[52]
  rare = RefusedSteps(guard, [])
  assert not any(rare.add(step) for step in range(0, 10_000, 5))
  in_a_row = RefusedSteps(GUARDS["skip"](max_consecutive=60), [])
  assert not any(in_a_row.add(step) for step in range(1_000, 1_060))


def test_rollback_without_a_saved_step_is_refused_naming_the_key():
  with pytest.raises(
    NumericError, match="no step 5 before is saved; lower --config.checkpoint.every"
  ):
    rollback_target(GUARDS["rollback"](steps=5), "train/loss is nan", 3, [])
