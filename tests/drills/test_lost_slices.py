"""A slice of two is killed with its disks: the job goes on from the emergency copies of the other.

Either the slice comes back with empty disks, and the run ends with the bits of one that was not
killed; or the job goes on without it, and takes it back later: the steps before the loss keep their
bits, and those after it see the same batches, with sums in another order. There is no checkpoint to
fall back to.
"""

import json
import os
import re
import shutil
import signal
import sys
import time

import numpy as np
import pytest

from tests.drills.test_certificates import certify
from tests.runs import Process, assert_same_bits, count_metrics, losses, run_to_end, train

pytestmark = pytest.mark.drill
STEPS = 14
EVERY = 3
JOB = (
  "--processes=4",
  "--slices=2",
  "--devices_per_process=1",
  "--grace_seconds=5",
  "--restarts=2",
)
MESH = ("--config.mesh.replica=-1", "--config.mesh.data=1", "--config.mesh.fsdp=2")


LONG_STEPS = 500  # more than the run takes while a slice returns


def command(where, *job, steps: int = STEPS) -> list[str]:
  """Return the command of a run in `where`, which holds the disks of its hosts too."""
  keys = {"directory": f"{where}/$T5X_LIKE_HOST", "every": EVERY}
  copies = (f"--config.checkpoint.emergency.{key}={value}" for key, value in keys.items())
  ends = (
    f"--config.total_steps={steps}",
    "--config.checkpoint.every=1000",
    "--config.eval_every=1000",
  )
  flags = (*MESH, *copies, *ends, "--config.trackers.goodput={}")
  return [sys.executable, "launch/local.py", *JOB, *job, "--", *train(where / "run", *flags)]


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
  return {"cache": tmp_path_factory.mktemp("compiled")}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, quick):
  """Return the directory of a run without kills."""
  where = tmp_path_factory.mktemp("whole")
  run_to_end(command(where), **quick)
  return where / "run"


def kill_slice(where, slice_: int, quick, *job) -> tuple[int, str]:
  """Kill a slice after eight steps and remove its disks; return (step resumed from, output)."""
  with Process(command(where, *job), **quick) as process:
    assert process.until(lambda: count_metrics(where / "run") >= 8), process.end()
    hosts = [2 * slice_, 2 * slice_ + 1]
    workers = process.children()
    for host in hosts:
      os.kill(workers[host], signal.SIGKILL)
    last = count_metrics(where / "run")
    for host in hosts:
      shutil.rmtree(where / str(host))
    code, output = process.end(1_800)
  assert code == 0, output
  step = int(re.findall(rf"from step (\d+) of {STEPS}", output)[-1])
  # A copy may have been unfinished.
  assert last - EVERY - 1 <= step <= last, (last, step)
  assert step % EVERY == 0, (last, step)
  spent = json.loads((where / "run" / "goodput.json").read_text())
  assert spent["disruption_count"] == 1
  assert spent["max_productive_step"] == STEPS
  print(f"step {last} was the last, step {step} the first; {spent}")
  return step, output


def test_a_slice_that_comes_back_with_empty_disks_continues_with_the_same_bits(
  uninterrupted, quick, tmp_path
):
  _, output = kill_slice(tmp_path, 1, quick)
  assert (
    "2 of 4 processes read their emergency copies; the others receive their shards over the mesh"
  ) in output
  assert losses(tmp_path / "run") == losses(uninterrupted)
  assert_same_bits(tmp_path / "run", uninterrupted, STEPS)


def test_the_remaining_slice_goes_on_without_the_first(uninterrupted, quick, tmp_path):
  job = ("--least_slices=1", "--return_seconds=100000")
  step, output = kill_slice(tmp_path, 0, quick, *job)
  assert "slice 0 is lost; 1 of 2 slices go on" in output
  assert "all 2 processes succeeded" in output
  assert "2 of 2 processes read their emergency copies" in output
  reached = losses(tmp_path / "run")
  expected = losses(uninterrupted)
  assert reached[:step] == expected[:step]
  assert len(reached) == STEPS
  assert np.abs(np.subtract(reached, expected)).max() < 1e-5, (reached, expected)


def test_the_remaining_slice_goes_on_and_the_lost_one_is_taken_back(quick, tmp_path):
  """The other goes on within a minute. Steps keep their batches, in one certificate."""
  whole = tmp_path / "whole"
  run_to_end(command(whole, steps=LONG_STEPS), **quick)
  job = ("--least_slices=1", "--return_seconds=100000", "--rejoin_seconds=1", "--restarts=0")
  where = tmp_path / "lost"
  with Process(command(where, *job, steps=LONG_STEPS), **quick) as process:
    assert process.until(lambda: count_metrics(where / "run") >= 8), process.end()
    workers = process.children()
    for host in (0, 1):
      os.kill(workers[host], signal.SIGKILL)
    begin = time.monotonic()
    for host in (0, 1):
      shutil.rmtree(where / str(host))
    assert process.until(lambda: "1 of 2 slices go on" in process.output_so_far())
    assert time.monotonic() - begin < 60
    assert process.until(lambda: has_steps_after_resuming(where / "run"))
    process.send(signal.SIGUSR1)
    code, output = process.end(1_800)
  assert code == 0, output
  assert "slice 0 is back; all complete slices train" in output
  assert "all 4 processes succeeded" in output
  first, second = (int(step) for step in re.findall(rf"from step (\d+) of {LONG_STEPS}", output))
  assert first < second
  reached = np.array([loss for _, loss in losses(where / "run")])
  expected = np.array([loss for _, loss in losses(whole / "run")])
  assert len(reached) == len(expected) == LONG_STEPS
  assert (reached[:first] == expected[:first]).all()
  differences = np.abs(reached - expected)
  assert differences[first : first + 3].max() < 1e-5
  # Rounding grows while training goes on, but another batch would have another loss.
  assert differences.max() < 0.1 * np.abs(np.diff(expected)).mean()
  code, output, outcome = certify(where / "run", "--steps=all", "--replay=all", devices=4, **quick)
  assert code == 0, output
  assert (outcome["first_step"], outcome["last_step"]) == (1, LONG_STEPS)
  starts = [(start["step"], start["environment"]["processes"]) for start in outcome["starts"]]
  assert starts == [(0, 4), (first, 2), (second, 4)]


def has_steps_after_resuming(workdir) -> bool:
  """Return whether the run has taken five steps after it was resumed."""
  rows = [json.loads(line) for line in (workdir / "history.jsonl").read_text().splitlines()]
  first_steps = [row["step"] for row in rows if "step" in row]
  return len(first_steps) > 1 and losses(workdir)[-1][0] > first_steps[-1] + 5
