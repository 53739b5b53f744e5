"""A long run with saves, evaluations and logging does not leak memory, descriptors or threads.

`T5X_LIKE_STEPS` sets the number of steps.
"""

import time
from typing import NamedTuple

import psutil
import pytest

from tests.drills.moments import steps as drill_steps
from tests.runs import Process, count_metrics, losses, train

pytestmark = pytest.mark.drill
SAVE_EVERY = 20
EVALUATE_EVERY = 40
# Until this step, a run starts threads for saves and evaluations, which it keeps.
SETTLED = EVALUATE_EVERY + 1
# The growth allowed between the first and the last sample: saves and evaluations open and close
# threads and files.
MAX_MEGABYTES = 64
MAX_DESCRIPTORS = 8
MAX_THREADS = 8


class Usage(NamedTuple):
  """The least use of resources among samples taken after a number of lines of metrics."""

  num_metrics: int
  megabytes: float
  descriptors: int
  threads: int


def sample_usage(pid: int, workdir) -> Usage:
  """Return the least of 30 samples within 0.3 s, which excludes most of what a save allocates."""
  process = psutil.Process(pid)
  megabytes = []
  descriptors = []
  threads = []
  while len(megabytes) < 30 and process.is_running():
    megabytes.append(process.memory_info().rss / 1e6)
    descriptors.append(process.num_fds())
    threads.append(process.num_threads())
    time.sleep(0.01)
  return Usage(count_metrics(workdir), min(megabytes), min(descriptors), min(threads))


def test_memory_and_descriptors_do_not_grow(tmp_path, capsys):
  num_steps = drill_steps(400)
  first_step = max(SETTLED, 0.25 * num_steps)
  assert num_steps > first_step, f"T5X_LIKE_STEPS={num_steps}: expected more than {SETTLED}"
  flags = (
    f"--config.total_steps={num_steps}",
    f"--config.checkpoint.every={SAVE_EVERY}",
    f"--config.eval_every={EVALUATE_EVERY}",
    "--config.evals.loss.max_examples=16",
    "--config.log_every=1",
  )
  workdir = tmp_path / "run"
  usages = []
  with Process(train(workdir, *flags), cache=tmp_path / "compiled") as process:
    for share in (0, 0.2, 0.4, 0.6, 0.75, 0.9):
      threshold = first_step + share * (num_steps - first_step)
      assert process.until(lambda: count_metrics(workdir) >= threshold, 3_600), process.end()
      usages.append(sample_usage(process.pid, workdir))
    exit_code, output = process.end(3_600)
  assert exit_code == 0, output
  assert [step for step, _ in losses(workdir)] == list(range(1, num_steps + 1))
  with capsys.disabled():
    for usage in usages:
      print(
        f"  line {usage.num_metrics:>5}: {usage.megabytes:8.1f} MB, "
        f"{usage.descriptors} descriptors, {usage.threads} threads"
      )
  first = usages[0]
  last = usages[-1]
  assert last.megabytes - first.megabytes < MAX_MEGABYTES
  assert last.descriptors - first.descriptors <= MAX_DESCRIPTORS
  assert last.threads - first.threads <= MAX_THREADS
  assert (workdir / "report.html").exists()
