"""However a run is stopped and started again, it ends with the bits of a run that never stopped.

Every run is a process, with dropout and a checkpoint every seven steps. `test_resume_objectives.py`
kills runs of every objective, and `drills/test_kills.py` kills them many times.
"""

import os
import shutil
import signal

import numpy as np
import pytest

from t5x_like.data import loader
from t5x_like.data import task as tasks
from tests.drills.moments import seeded_random
from tests.runs import (
  LAUNCHER,
  Process,
  assert_same_bits,
  count_metrics,
  losses,
  run,
  steps,
  steps_being_saved,
  train,
)

STEPS = 60


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
  """Return the options of a process that reads compiled programs from a cache."""
  return {"cache": tmp_path_factory.mktemp("compiled")}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, quick):
  """Return the workdir of a run that is never stopped."""
  workdir = tmp_path_factory.mktemp("uninterrupted")
  code, output = run(train(workdir), **quick)
  assert code == 0, output
  assert [step for step, _ in losses(workdir)] == list(range(1, STEPS + 1))
  return workdir


def stop(workdir, number: int, condition, command, **where) -> tuple[int, str]:
  """Start a run and send it a signal once the condition holds; return its exit code and output."""
  with Process(command, **where) as process:
    assert process.until(condition), f"ended before it could be stopped: {process.end()}"
    process.send(number)
    return process.end()


def test_a_run_stopped_in_every_way_ends_with_the_bits_of_one_that_was_not(
  uninterrupted, quick, tmp_path
):
  command = train(tmp_path)
  generator = seeded_random("stopped in every way")
  stop_line = generator.randint(22, 27)
  print(f"SIGKILL in a save; SIGTERM at line {stop_line}; SIGINT")

  def is_saving():
    return any(step >= 14 for step in steps_being_saved(tmp_path))

  code, _ = stop(tmp_path, signal.SIGKILL, is_saving, command, **quick)
  assert code == -signal.SIGKILL
  assert 14 not in steps(tmp_path)
  code, output = stop(
    tmp_path, signal.SIGTERM, lambda: count_metrics(tmp_path) >= stop_line, command, **quick
  )
  assert code == 75, output
  assert "the same command continues it" in output
  assert "resuming" in output
  stopped_step = steps(tmp_path)[-1]
  assert stop_line <= stopped_step < STEPS - 3
  assert f"saved step {stopped_step} of {STEPS}" in output
  code, output = stop(
    tmp_path, signal.SIGINT, lambda: count_metrics(tmp_path) >= stopped_step + 3, command, **quick
  )
  assert code == 75, output
  assert f"from step {stopped_step} of {STEPS}" in output
  code, output = run(command, **quick)
  assert code == 0, output
  assert losses(tmp_path) == losses(uninterrupted)
  assert_same_bits(tmp_path, uninterrupted, STEPS)


@pytest.fixture(
  scope="module", params=[(9, 3), pytest.param((STEPS, 7), marks=pytest.mark.heavy)], ids=str
)
def pair(request, tmp_path_factory, quick):
  """Return (workdir, flags, steps, steps between checkpoints) of a run of two processes."""
  total, every = request.param
  workdir = tmp_path_factory.mktemp("pair")
  flags = (
    f"--config.total_steps={total}",
    f"--config.checkpoint.every={every}",
    "--config.checkpoint.keep_last=20",
  )
  code, output = run([*LAUNCHER, "--", *train(workdir, *flags, "--config.mesh.fsdp=4")], **quick)
  assert code == 0, output
  return workdir, flags, total, every


@pytest.mark.more
def test_two_processes_of_which_one_is_killed_in_a_save_end_with_the_same_bits(
  pair, quick, tmp_path
):
  workdir, flags, total, every = pair
  command = [*LAUNCHER, "--restarts=1", "--", *train(tmp_path, *flags, "--config.mesh.fsdp=4")]
  with Process(command, **quick) as launcher:
    assert launcher.until(lambda: any(step > every for step in steps_being_saved(tmp_path)))
    os.kill(seeded_random("two processes").choice(launcher.children()), signal.SIGKILL)
    code, output = launcher.end()
  assert code == 0, output
  assert "killed by SIGKILL" in output
  assert "restart 1 of 1" in output
  assert "resuming" in output
  assert losses(tmp_path) == losses(workdir)
  assert_same_bits(tmp_path, workdir, total)


@pytest.mark.more
def test_a_run_of_two_processes_goes_on_in_one(pair, quick, tmp_path):
  workdir, flags, total, every = pair
  resumed = tmp_path / "run"
  start = total // every // 2 * every
  shutil.copytree(workdir, resumed)
  for step in steps(resumed):
    if step > start:
      shutil.rmtree(resumed / "checkpoints" / str(step))
  code, output = run(train(resumed, *flags), **quick, devices=8)
  assert code == 0, output
  assert f"from step {start} of {total}" in output
  resumed_losses = losses(resumed)
  pair_losses = losses(workdir)
  assert [s for s, _ in resumed_losses] == [s for s, _ in pair_losses] == list(range(1, total + 1))
  assert resumed_losses[:start] == pair_losses[:start]
  assert [x for _, x in resumed_losses] == pytest.approx([x for _, x in pair_losses], rel=1e-5)


def test_the_batches_of_two_processes_are_those_of_one():
  task = tasks.build(name="span_corruption", split="train", store="builtin", inputs_length=32)
  batches = loader.train_batches(task, batch_size=8, seed=0, start_step=20)
  first_half = loader.train_batches(task, batch_size=8, seed=0, start_step=20, rows=range(4))
  second_half = loader.train_batches(task, batch_size=8, seed=0, start_step=20, rows=range(4, 8))
  for _, batch, first, second in zip(range(3), batches, first_half, second_half):
    for name, x in batch.items():
      np.testing.assert_array_equal(x, np.concatenate([first[name], second[name]]))
