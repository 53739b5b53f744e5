"""A run that is killed between checkpoints resumes from its emergency copy."""

import re
import signal

import pytest

from tests.runs import Process, losses, run, steps, train

pytestmark = pytest.mark.runs


def test_run_killed_before_its_first_checkpoint_resumes_from_an_emergency_copy(tmp_path):
  workdir = tmp_path / "run"
  options = {"cache": tmp_path / "compiled"}
  ends = ("--config.total_steps=9", "--config.checkpoint.every=1000", "--config.eval_every=1000")
  copies = (
    f"--config.checkpoint.emergency.directory={tmp_path}/near",
    "--config.checkpoint.emergency.every=2",
  )
  command = train(workdir, *ends, *copies)
  with Process(command, **options) as process:
    assert process.until(lambda: list(tmp_path.glob("near/*/4-0"))), process.end()
    process.send(signal.SIGKILL)
    process.end()
  losses_before = dict(losses(workdir))
  assert not list(workdir.glob("checkpoints/[0-9]*"))
  code, output = run(command, **options)
  assert code == 0, output
  first = int(re.search(r"from step (\d) of 9", output)[1])
  assert first in (4, 6, 8), output
  assert "1 of 1 processes read their emergency copies" in output, output
  assert [step for step, _ in losses(workdir)] == list(range(1, 10))
  assert set(steps(workdir)) == {
    first,
    9,
  }
  # Repeated steps have the same losses.
  losses_after = dict(losses(workdir))
  assert all(losses_after[step] == loss for step, loss in losses_before.items())
