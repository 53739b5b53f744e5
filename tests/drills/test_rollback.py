"""Kill a run in the middle of a rollback: once restarted, it ends with the same bits."""

import json
import signal

import pytest

from t5x_like.report.writer import read_metrics
from tests.drills.moments import kill_at
from tests.runs import assert_same_bits, losses, run, run_to_end, train

pytestmark = pytest.mark.drill
STEPS = 24
FLAGS = (
  f"--config.total_steps={STEPS}",
  "--config.checkpoint.every=3",
  "--config.checkpoint.keep_last=20",
  '--config.guard={"name": "rollback", "steps": 4}',
)
# Makes the loss weights of batch 14 (step 15) NaN.
POISON_BATCH = """
from t5x_like.training import phases

iterate_batches = phases.iterate_batches

def iterate_poisoned_batches(run_phases, first_step, rows=None):
  batches = iterate_batches(run_phases, first_step, rows)
  for step, batch in enumerate(batches, start=first_step):
    if step == 14:
      batch = batch | {"decoder_loss_weights": batch["decoder_loss_weights"] * float("nan")}
    yield batch

phases.iterate_batches = iterate_poisoned_batches
"""


def train_on_poisoned_batch(workdir, killed_at_file: str = "no such name") -> list[str]:
  """Return the command of a run that is killed if it renames a file of the given name."""
  return kill_at(train(workdir, *FLAGS), "os.rename", killed_at_file, also=POISON_BATCH)


def test_a_rollback_ends_with_the_same_bits_however_often_it_is_killed(tmp_path):
  options = {"cache": tmp_path / "compiled"}
  for name in ("uninterrupted", "repeated"):
    output = run_to_end(train_on_poisoned_batch(tmp_path / name), **options)
    assert "back to step 9, continuing with the batches of step 16" in output, output

  files = ("12.rolled_back", "metrics.jsonl", "12.rolled_back", "report.html")
  for number, file in enumerate(files):
    code, output = run(train_on_poisoned_batch(tmp_path / "killed", file), **options)
    assert code in (-signal.SIGKILL, 0), output
    # By its third start the run may have finished the rollback, which renames the file.
    may_finish = number == 2
    assert code != 0 or may_finish, f"not killed at {file}: {output}"
  run_to_end(train_on_poisoned_batch(tmp_path / "killed"), **options)

  expected_losses = losses(tmp_path / "uninterrupted")
  assert [step for step, _ in expected_losses] == list(range(1, STEPS + 1))
  assert all(loss is not None for _, loss in expected_losses)
  history = (tmp_path / "uninterrupted" / "history.jsonl").read_text().splitlines()
  events = [json.loads(line) for line in history]
  rollbacks = [event for event in events if "rollback" in event]
  # The batches of steps 10 to 15 are passed over.
  assert [(event["from"], event["step"], event["batches_passed"]) for event in rollbacks] == [
    (15, 9, 6)
  ]
  for name in ("repeated", "killed"):
    assert losses(tmp_path / name) == expected_losses
    steps = [row["step"] for row in read_metrics(tmp_path / name) if "train/loss" in row]
    assert steps == list(range(1, STEPS + 1))
    assert_same_bits(tmp_path / name, tmp_path / "uninterrupted", STEPS)
