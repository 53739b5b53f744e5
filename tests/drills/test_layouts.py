"""A run whose mesh and number of processes change at restarts survives kills unchanged.

It ends with the same bits as a run with the same changes and no kills. A run with one layout
throughout reads the same batches but sums in another order, so its losses are only close.
"""

import signal
import sys
import time

import pytest

from tests.drills.moments import kills, seeded_random
from tests.runs import Process, assert_same_bits, count_metrics, losses, run_to_end, train

pytestmark = pytest.mark.drill
STEPS_PER_LAYOUT = 8
LAYOUTS = [  # (processes, devices of each, mesh)
  (1, 2, "data=2"),
  (2, 1, "fsdp=2"),
  (1, 2, "tensor=2"),
  (1, 1, "data=1"),
  (2, 1, "data=2"),
  (1, 4, "fsdp=4"),
]


def command(workdir, change: int) -> tuple[list[str], dict]:
  """Return the command that trains to the end of a layout, and its environment.

  Args:
    change: how many times the layout has changed before.
  """
  processes, devices, mesh = LAYOUTS[change % len(LAYOUTS)]
  train_command = train(workdir, *flags(change), f"--config.mesh.{mesh}")
  if processes == 1:
    return train_command, {"devices": devices}
  launcher = [
    sys.executable,
    "launch/local.py",
    f"--processes={processes}",
    f"--devices_per_process={devices}",
  ]
  return [*launcher, "--grace_seconds=5", "--", *train_command], {}


def flags(change: int) -> tuple[str, ...]:
  return (
    f"--config.total_steps={STEPS_PER_LAYOUT * (change + 1)}",
    "--config.checkpoint.every=3",
    "--config.eval_every=1000",
  )


def test_kills_between_changes_of_layout_change_no_bit(tmp_path):
  num_layouts = kills(3, share=8)  # one kill with each layout
  rng = seeded_random("layouts")
  uninterrupted = tmp_path / "uninterrupted"
  for change in range(num_layouts):
    argv, environment = command(uninterrupted, change)
    run_to_end(argv, **environment)
  killed = tmp_path / "killed"
  for change in range(num_layouts):
    argv, environment = command(killed, change)
    with Process(argv, **environment) as process:
      last_step = STEPS_PER_LAYOUT * change + rng.randint(1, STEPS_PER_LAYOUT - 2)
      if process.until(lambda: count_metrics(killed) > last_step):
        time.sleep(rng.uniform(0, 0.05))
        process.send(signal.SIGKILL)
      exit_code, output = process.end()
    assert exit_code in (0, -signal.SIGKILL), output
    # Resume, and train to the end of the layout.
    run_to_end(argv, **environment)
  assert losses(killed) == losses(uninterrupted)
  assert_same_bits(killed, uninterrupted, STEPS_PER_LAYOUT * num_layouts)
  one_layout = tmp_path / "one_layout"
  run_to_end(train(one_layout, *flags(num_layouts - 1)))
  assert dict(losses(killed)) == pytest.approx(dict(losses(one_layout)), rel=1e-4)
