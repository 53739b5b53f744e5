"""A rollback that really goes back, killed in the middle of it, and repeated: the same bits."""

import json
import signal

import pytest

from t5x_like.report.writer import read_metrics
from tests.drills.moments import killed_at
from tests.runs import assert_same_bits, losses, run, train

pytestmark = pytest.mark.drill
STEPS = 24
FLAGS = (
  f"--config.total_steps={STEPS}",
  "--config.checkpoint.every=3",
  "--config.checkpoint.keep_last=20",
  '--config.guard={"name": "rollback", "steps": 4}',
)
POISON = """
from t5x_like.training import phases
batches = phases.iterate_batches
def poisoned(built, position, rows):
  for number, batch in enumerate(batches(built, position, rows), start=position):
    nan = number == 14
    if nan:
      batch = batch | {"decoder_loss_weights": batch["decoder_loss_weights"] * float("nan")}
    yield batch
phases.iterate_batches = poisoned
"""


def poisoned(workdir, name: str = "no such name") -> list[str]:
  """The run on data of which batch 14 (step 15) is not a number; killed when a file of that name is
  renamed."""
  return killed_at(train(workdir, *FLAGS), "os.rename", name, also=POISON)


def test_it_goes_back_and_ends_the_same_however_often_it_is_killed(tmp_path):
  where = {"cache": tmp_path / "compiled"}
  for name in ("whole", "again"):
    code, said = run(poisoned(tmp_path / name), **where)
    assert code == 0 and "back to step 9, and on with the batches of step 16" in said, said
  for number, name in enumerate(
    ("12.rolled_back", "metrics.jsonl", "12.rolled_back", "report.html")
  ):
    code, said = run(poisoned(tmp_path / "killed", name), **where)
    assert code in (-signal.SIGKILL, 0), said
    assert code or number == 2, f"not killed at {name}: {said}"
  code, said = run(poisoned(tmp_path / "killed"), **where)
  assert code == 0, said
  uninterrupted = losses(tmp_path / "whole")
  assert [step for step, _ in uninterrupted] == list(range(1, STEPS + 1)) and all(
    loss is not None for _, loss in uninterrupted
  )
  rows = [
    json.loads(line) for line in (tmp_path / "whole" / "history.jsonl").read_text().splitlines()
  ]
  assert [
    (row["from"], row["step"], row["batches_passed"]) for row in rows if "rollback" in row
  ] == [(15, 9, 6)]
  for name in ("again", "killed"):
    assert losses(tmp_path / name) == uninterrupted
    assert [row["step"] for row in read_metrics(tmp_path / name) if "train/loss" in row] == list(
      range(1, STEPS + 1)
    )
    assert_same_bits(tmp_path / name, tmp_path / "whole", STEPS)
