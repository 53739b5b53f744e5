"""Training goes on while a slow store saves, and a save that takes too long ends the run."""

import time

import pytest

from tests import object_server
from tests.runs import Process, losses, run_to_end, train

pytestmark = pytest.mark.drill
STEPS = 80
FLAGS = (
  f"--config.total_steps={STEPS}",
  "--config.checkpoint.every=40",
  "--config.step_timeout_seconds=60",
)


@pytest.fixture
def server(tmp_path):
  pytest.importorskip("gcsfs")
  with object_server.serve(tmp_path / "bucket") as server:
    yield server


@pytest.fixture
def process_options(tmp_path):
  return {"cache": tmp_path / "compiled"}


def times_of_steps(folder) -> dict[int, float]:
  """Return when each step was logged, by its TensorBoard event."""
  from tensorflow.compat.v1.train import summary_iterator

  files = folder.glob("events.*")
  times = {}
  for file in files:
    for event in summary_iterator(str(file)):
      if event.step:
        times[event.step] = event.wall_time
  return times


def test_training_goes_on_while_a_slow_store_saves(server, process_options, tmp_path):
  run_to_end(train(tmp_path / "whole", *FLAGS), **process_options)
  server.delay = 0.4
  output = run_to_end(train("gs://bucket/run", *FLAGS), **process_options)
  assert "no progress for" not in output, output
  assert losses(server.root / "run") == losses(tmp_path / "whole")
  (manifest,) = (server.root / "run").glob("checkpoints/40-*/manifest.json")
  begun = times_of_steps(server.root / "run")
  committed = manifest.stat().st_mtime
  during = [step for step, time in begun.items() if begun[40] < time < committed]
  print(
    f"saving step 40 took {committed - begun[40]:.1f} s; meanwhile {len(during)} steps were taken"
  )
  assert len(during) > 5


def test_a_save_that_takes_too_long_ends_the_run_in_time(server, process_options):
  flags = (*FLAGS, "--config.eval_every=1000", "--config.checkpoint.save_timeout_seconds=5")
  command = train("gs://bucket/run", *flags)
  with Process(command, **process_options) as process:
    assert process.until(lambda: "new run in" in process.output_so_far()), process.end()
    server.upload_delay = 8.0
    began = time.monotonic()
    code, output = process.end()
  assert code == 69, output
  assert "checkpoint was not written within 5 s" in output, output
  assert "Traceback" not in output, output
  print(f"ended {time.monotonic() - began:.1f} s after the store became slow")
  server.upload_delay = 0.0
  run_to_end(command, **process_options)
