"""Memory and descriptors of a run over many steps, with saves, evaluations and logging; 3,000 with
STEPS=3000."""

import time

import psutil
import pytest

from tests.drills.moments import steps
from tests.runs import Process, count_metrics, losses, train

pytestmark = pytest.mark.drill
# threads that save and evaluate open and close some
MOST_MEGABYTES = 64
MOST_DESCRIPTORS = 8


def test_memory_and_descriptors_do_not_grow(tmp_path, capsys):
  total = steps(400)
  flags = (
    f"--config.total_steps={total}",
    "--config.checkpoint.every=20",
    "--config.eval_every=40",
  )
  flags += ("--config.evals.loss.max_examples=16", "--config.log_every=1")
  workdir = tmp_path / "run"
  table = []
  with Process(train(workdir, *flags), cache=tmp_path / "compiled") as process:
    for share in (0.25, 0.4, 0.55, 0.7, 0.8, 0.9):
      assert process.until(lambda: count_metrics(workdir) >= share * total, 3_600), process.end()
      about = psutil.Process(process.pid)
      samples = []
      while (
        len(samples) < 30 and about.is_running()
      ):  # the least of them: saves under way come and go
        samples.append((about.memory_info().rss / 1e6, about.num_fds(), about.num_threads()))
        time.sleep(0.01)
      table.append((count_metrics(workdir), *map(min, zip(*samples))))
    code, output = process.end(3_600)
  assert code == 0, output
  assert [step for step, _ in losses(workdir)] == list(range(1, total + 1))
  with capsys.disabled():
    print(
      "\n".join(
        f"  line {n:>5}: {rss:8.1f} MB, {fds} descriptors, {threads} threads"
        for n, rss, fds, threads in table
      )
    )
  first = table[0]
  last = table[-1]
  assert last[1] - first[1] < MOST_MEGABYTES
  assert last[2] - first[2] <= MOST_DESCRIPTORS
  assert last[3] - first[3] <= MOST_DESCRIPTORS
  assert (workdir / "report.html").exists()
