"""A preparation on a Dask cluster of several processes writes the records of a local one.

Dask comes from the extra `services` (`make test-services`).
"""

import contextlib
import json
import random
import socket
import subprocess
import sys
import time

import pytest

from tools import prepare_data

pytestmark = pytest.mark.services


@contextlib.contextmanager
def cluster(workers: int):
  """The scheduler's address and the workers' processes."""
  pytest.importorskip("distributed")
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  address = f"tcp://127.0.0.1:{port}"
  quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  command = [
    sys.executable,
    "-m",
    "distributed.cli.dask_scheduler",
    "--host=127.0.0.1",
    f"--port={port}",
  ]
  processes = [subprocess.Popen([*command, "--no-dashboard"], **quiet)]
  command = [
    sys.executable,
    "-m",
    "distributed.cli.dask_worker",
    address,
    "--nthreads=1",
    "--no-nanny",
  ]
  processes += [subprocess.Popen([*command, "--no-dashboard"], **quiet) for _ in range(workers)]
  try:
    yield address, processes[1:]
  finally:
    for process in processes:
      process.kill()
      process.wait()


def write_pages(folder, parts: int = 10, pages: int = 300):
  """Pages of which some are copies, near copies, or share sentences with others."""
  generator = random.Random(0)
  texts = []
  for _ in range(parts * pages):
    text = [" ".join(f"w{generator.randrange(5_000)}" for _ in range(8)) + "." for _ in range(20)]
    if texts and generator.random() < 0.3:
      text = (
        generator.choice(texts)[: generator.choice((8, 19, 20))]
        + text[: generator.choice((0, 1, 9))]
      )
    texts.append(text)
  for part in range(parts):
    lines = (json.dumps({"text": " ".join(text)}) for text in texts[part::parts])
    (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n")


def files_of(root):
  return {
    str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()
  }


def wait_for(condition, run):
  while not condition():
    assert run.poll() is None, run.communicate()
    time.sleep(0.01)


def test_workers_killed_on_the_way_change_nothing(tmp_path):
  write_pages(tmp_path)
  flags = [
    f"--source=jsonl:{tmp_path}/*.jsonl",
    "--vocabulary=bytes",
    "--split=train",
    "--min_words=1",
  ]
  flags += ["--part_bytes=1", "--shard_tokens=50000", "--clean=c4,exact,near,spans"]
  assert prepare_data.main([*flags, f"--output={tmp_path}/here", "--workers=1"]) == 0
  progress = tmp_path / "cluster" / ".train.progress"
  with cluster(4) as (address, workers):
    command = [*flags, f"--output={tmp_path}/cluster", "--engine=beam", "--runner=DaskRunner"]
    command += [f"--dask_client_address={address}"]
    run = subprocess.Popen(
      [sys.executable, "-m", "tools.prepare_data", *command], stderr=subprocess.PIPE, text=True
    )
    moments = (
      lambda: len(list(progress.glob("signatures/0*"))) >= 5,  # signing
      lambda: list(progress.glob("near/0*")),  # comparing
      lambda: len(list(progress.glob("parts/0*"))) >= 3,  # making parts
    )
    for worker, moment in zip(workers, moments):
      wait_for(moment, run)
      worker.kill()
    assert run.wait() == 0, run.stderr.read()
  assert len([worker for worker in workers if worker.returncode == -9]) >= 3
  assert files_of(tmp_path / "here") == files_of(tmp_path / "cluster")
