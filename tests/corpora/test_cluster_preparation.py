"""A preparation on a Dask cluster writes the same store as a local one, even if workers die.

Dask is in the extra `services` (`make test-services`).
"""

import contextlib
import random
import socket
import subprocess
import sys
import time

import pytest

import json_lines
from preparations import prepare, read_files

pytestmark = pytest.mark.services


@contextlib.contextmanager
def start_cluster(workers: int):
  """Start a Dask cluster; yield (the address of the scheduler, the processes of the workers)."""
  pytest.importorskip("distributed")
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  address = f"tcp://127.0.0.1:{port}"
  scheduler = ["dask_scheduler", "--host=127.0.0.1", f"--port={port}"]
  worker = ["dask_worker", address, "--nthreads=1", "--no-nanny"]
  processes = []
  for name, *flags in [scheduler] + [worker] * workers:
    command = [sys.executable, "-m", f"distributed.cli.{name}", *flags, "--no-dashboard"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes.append(subprocess.Popen(command, **quiet))
  try:
    yield address, processes[1:]
  finally:
    for process in processes:
      process.kill()
      process.wait()


def write_pages(folder, parts: int = 10, pages: int = 300):
  """Write pages, some of which are copies, near copies, or share sentences with others."""
  generator = random.Random(0)
  texts = []
  for _ in range(parts * pages):
    page = [" ".join(f"w{generator.randrange(5_000)}" for _ in range(8)) + "." for _ in range(20)]
    if texts and generator.random() < 0.3:
      copied = generator.choice(texts)[: generator.choice((8, 19, 20))]
      page = copied + page[: generator.choice((0, 1, 9))]
    texts.append(page)
  for part in range(parts):
    rows = [{"text": " ".join(page)} for page in texts[part::parts]]
    json_lines.write(folder / f"{part}.jsonl", rows)


def wait_for(condition, run):
  while not condition():
    assert run.poll() is None, run.communicate()
    time.sleep(0.01)


def test_killed_workers_do_not_change_the_store(tmp_path):
  write_pages(tmp_path)
  source = f"jsonl:{tmp_path}/*.jsonl"
  flags = ["--split=train", "--min_words=1", "--part_bytes=1", "--shard_tokens=50000"]
  flags.append("--clean=c4,exact,near,spans")
  assert prepare(source, tmp_path / "here", *flags) == 0
  progress = tmp_path / "cluster" / ".train.progress"
  with start_cluster(4) as (address, workers):
    command = [sys.executable, "-m", "tools.prepare_data", f"--source={source}", *flags]
    command += ["--vocabulary=bytes", f"--output={tmp_path}/cluster", "--engine=beam"]
    command += ["--runner=DaskRunner", f"--dask_client_address={address}"]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    moments = (
      lambda: len(list(progress.glob("signatures/0*"))) >= 5,  # while it computes signatures
      lambda: list(progress.glob("near/0*")),  # while it compares pages
      lambda: len(list(progress.glob("parts/0*"))) >= 3,  # while it writes parts
    )
    for worker, moment in zip(workers, moments):
      wait_for(moment, run)
      worker.kill()
    assert run.wait() == 0, run.stderr.read()
  assert len([worker for worker in workers if worker.returncode == -9]) >= 3
  assert read_files(tmp_path / "here") == read_files(tmp_path / "cluster")
