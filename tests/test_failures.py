"""Two processes end as docs/reference/exit-codes.md says and resume to the same bits."""

import json
import os
import signal
import sys
import threading
import time

import pytest

from tests import object_server
from tests.drills.moments import seeded_random
from tests.runs import (
  LAUNCHER,
  NANO,
  REPO,
  Process,
  assert_same_bits,
  count_metrics,
  fingerprints,
  losses,
  run,
  steps,
  train,
)

pytestmark = pytest.mark.heavy
STEPS = 20
FLAGS = (
  f"--config.total_steps={STEPS}",
  "--config.checkpoint.every=4",
  "--config.checkpoint.keep_last=20",
)
TIMEOUT = "--config.step_timeout_seconds=20"
POISONED = f"""
import sys
sys.path[:0] = [{str(REPO)!r}]
from t5x_like import command_line, train
from t5x_like.training import phases
batches = phases.iterate_batches
def poisoned(built, position, rows):
  for number, batch in enumerate(batches(built, position, rows), start=position):
    if number == 9:
      batch = batch | {{"decoder_loss_weights": batch["decoder_loss_weights"] * float("nan")}}
    yield batch
phases.iterate_batches = poisoned
command_line.run_program(train.main)
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
  return {"cache": tmp_path_factory.mktemp("compiled")}


def pair(workdir, *flags, restarts: int = 0) -> list[str]:
  return [
    *LAUNCHER,
    f"--restarts={restarts}",
    "--",
    *train(workdir, *FLAGS, "--config.mesh.fsdp=4", *flags),
  ]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, cache):
  workdir = tmp_path_factory.mktemp("whole")
  code, output = run(pair(workdir), **cache)
  assert code == 0, output
  return workdir


def assert_ended_the_same(workdir, uninterrupted):
  assert losses(workdir) == losses(uninterrupted)
  assert_same_bits(workdir, uninterrupted, STEPS)


def test_sigterm_to_one_saves_in_both_and_the_same_command_goes_on(uninterrupted, cache, tmp_path):
  with Process(pair(tmp_path), **cache) as launcher:
    assert launcher.until(lambda: count_metrics(tmp_path) >= 6)
    os.kill(seeded_random("failures").choice(launcher.children()), signal.SIGTERM)
    code, output = launcher.end()
  assert code == 75, output
  assert output.count(f"preempted: saved step {steps(tmp_path)[-1]} of {STEPS}") == 2, output
  code, output = run(pair(tmp_path), **cache)
  assert code == 0, output
  assert_ended_the_same(tmp_path, uninterrupted)


def test_sigkill_to_one_ends_both_and_they_start_again(uninterrupted, cache, tmp_path):
  with Process(pair(tmp_path, restarts=1), **cache) as launcher:
    assert launcher.until(lambda: count_metrics(tmp_path) >= 6)
    os.kill(seeded_random("failures").choice(launcher.children()), signal.SIGKILL)
    code, output = launcher.end()
  assert code == 0, output
  assert "killed by SIGKILL" in output, output
  assert "restart 1 of 1" in output, output
  assert_ended_the_same(tmp_path, uninterrupted)


def test_a_stopped_process_is_found_by_the_other_and_both_start_again(
  uninterrupted, cache, tmp_path
):
  with Process(pair(tmp_path, TIMEOUT, restarts=1), **cache) as launcher:
    assert launcher.until(lambda: count_metrics(tmp_path) >= 6)
    began = time.monotonic()
    os.kill(launcher.children()[1], signal.SIGSTOP)
    code, output = launcher.end(240)
  assert code == 0, output
  assert "no progress for 20 s while" in output, output
  assert "exit code 69" in output, output
  assert "Thread 0x" in output
  assert (tmp_path / "logs" / "stacks-0.txt").stat().st_size
  assert time.monotonic() - began < 200
  assert_ended_the_same(tmp_path, uninterrupted)


def train_poisoned(workdir, *flags) -> list[str]:
  """Return the command of two processes that meet NaN in the batch of step 10."""
  argv = [f"--config={NANO}", f"--workdir={workdir}", *FLAGS, "--config.mesh.fsdp=4", *flags]
  return [*LAUNCHER, "--restarts=2", "--", sys.executable, "-c", POISONED, *argv]


def test_nan_in_a_batch_stops_both_without_a_restart(cache, tmp_path):
  code, output = run(train_poisoned(tmp_path), **cache)
  assert code == 3, output
  assert "train/loss is nan at step 10" in output, output
  assert "restart 1" not in output, output
  assert steps(tmp_path) == [4, 8]


@pytest.mark.parametrize("guard", ['{"name": "skip"}', '{"name": "rollback", "steps": 2}'])
def test_a_guard_passes_nan_in_a_batch_with_the_same_bits_after_a_kill(guard, cache, tmp_path):
  whole = tmp_path / "whole"
  killed = tmp_path / "killed"
  flag = f"--config.guard={guard}"
  code, output = run(train_poisoned(whole, flag), **cache)
  assert code == 0, output
  with Process(train_poisoned(killed, flag), **cache) as launcher:
    assert launcher.until(lambda: count_metrics(killed) >= 11)
    os.kill(seeded_random("failures").choice(launcher.children()), signal.SIGKILL)
    code, output = launcher.end()
  assert code == 0, output
  assert "restart 1 of 2" in output, output
  assert_ended_the_same(killed, whole)


def test_an_object_store_that_is_down_for_a_minute(uninterrupted, cache, tmp_path, monkeypatch):
  server = object_server.Server(tmp_path / "bucket")
  server.root.mkdir()
  monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
  monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

  def committed():
    return {
      p.parent.name.split("-")[0] for p in server.root.glob("run/checkpoints/*/manifest.json")
    }

  with server.running(), Process(pair("gs://bucket/run", restarts=1), **cache) as launcher:
    assert launcher.until(lambda: "4" in committed())
    server.unavailable = 1.0
    threading.Timer(60, lambda: setattr(server, "unavailable", 0.0)).start()
    code, output = launcher.end(400)
  assert code == 0, output
  (manifest,) = server.root.glob(f"run/checkpoints/{STEPS}-*/manifest.json")
  assert json.loads(manifest.read_text())["tensors"] == fingerprints(uninterrupted, STEPS)
  assert losses(server.root / "run") == losses(uninterrupted)
  assert (server.root / "run" / "report.html").exists()
