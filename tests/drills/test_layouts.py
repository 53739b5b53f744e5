"""Meshes and numbers of processes that change at restarts, with kills between: the same batches,
and the same bits as the same layouts without kills. Against one layout throughout, sums are taken
in another order: close, not equal."""

import signal
import sys
import time

import pytest

from tests.drills.moments import kills, seeded_random
from tests.runs import Process, assert_same_bits, count_metrics, losses, run, train

pytestmark = pytest.mark.drill
LEG = 8  # steps with a layout
LAYOUTS = [  # (processes, devices of each, mesh)
  (1, 2, "data=2"),
  (2, 1, "fsdp=2"),
  (1, 2, "tensor=2"),
  (1, 1, "data=1"),
  (2, 1, "data=2"),
  (1, 4, "fsdp=4"),
]


def command(workdir, leg: int) -> tuple[list[str], dict]:
  """Return the command of the run up to the end of a leg, and its environment."""
  processes, devices, mesh = LAYOUTS[leg % len(LAYOUTS)]
  argv = train(workdir, *flags(leg), f"--config.mesh.{mesh}")
  if processes == 1:
    return argv, {"devices": devices}
  launcher = [
    sys.executable,
    "launch/local.py",
    f"--processes={processes}",
    f"--devices_per_process={devices}",
  ]
  return [*launcher, "--grace_seconds=5", "--", *argv], {}


def flags(leg: int) -> tuple[str, ...]:
  return (
    f"--config.total_steps={LEG * (leg + 1)}",
    "--config.checkpoint.every=3",
    "--config.eval_every=1000",
  )


def test_kills_between_changes_of_layout_change_no_bit(tmp_path):
  legs = kills(3, share=8)
  draw = seeded_random("layouts")
  for leg in range(legs):
    argv, where = command(tmp_path / "whole", leg)
    code, output = run(argv, **where)
    assert code == 0, output
  workdir = tmp_path / "killed"
  for leg in range(legs):
    argv, where = command(workdir, leg)
    with Process(argv, **where) as process:
      last = LEG * leg + draw.randint(1, LEG - 2)
      if process.until(lambda: count_metrics(workdir) > last):
        time.sleep(draw.uniform(0, 0.05))
        process.send(signal.SIGKILL)
      code, output = process.end()
    assert code in (0, -signal.SIGKILL), output
    code, output = run(argv, **where)
    assert code == 0, output
  total = LEG * legs
  assert losses(workdir) == losses(tmp_path / "whole")
  assert_same_bits(workdir, tmp_path / "whole", total)
  code, output = run(train(tmp_path / "one", *flags(legs - 1)))
  assert code == 0, output
  assert dict(losses(workdir)) == pytest.approx(dict(losses(tmp_path / "one")), rel=1e-4)
