"""Eight processes read a store at once although one is killed, and one is killed as it writes."""

import random
import signal
import subprocess
import sys

import psutil
import pytest

from tests.drills.moments import seeded_random
from tests.runs import REPO
from tools import prepare_data

pytestmark = pytest.mark.drill
READERS = 8
BATCHES = 300
READER = f"""
import hashlib, sys
sys.path[:0] = [{str(REPO)!r}]
from t5x_like.data import loader
from t5x_like.data import task as tasks
task = tasks.build(name="span_corruption", split="train", store=sys.argv[1], inputs_length=64)
digest = hashlib.sha256()
for step, batch in zip(range({BATCHES}), loader.train_batches(task, batch_size=16, seed=3)):
  for name in sorted(batch):
    digest.update(batch[name].tobytes())
  if step == {BATCHES} // 3:
    print("reading", flush=True)
print(digest.hexdigest(), flush=True)
"""


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
  path = tmp_path_factory.mktemp("text") / "lines.txt"
  draw = random.Random(0)
  vocabulary = [f"word{i}" for i in range(500)]
  path.write_text("".join(" ".join(draw.choices(vocabulary, k=60)) + "\n" for _ in range(20_000)))
  return path


def flags(lines, output, workers: int) -> list[str]:
  sizes = ("--shard_tokens=100000", "--part_bytes=200000", f"--workers={workers}")
  return [
    f"--source=lines:{lines}",
    "--vocabulary=bytes",
    "--split=train",
    f"--output={output}",
    *sizes,
  ]


@pytest.fixture(scope="module")
def store(lines, tmp_path_factory):
  path = tmp_path_factory.mktemp("store")
  assert prepare_data.main(flags(lines, path, 1)) == 0
  return path


def files_of(root):
  return {
    str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()
  }


def test_readers_of_a_store_go_on_when_one_is_killed(store):
  before = files_of(store)
  draw = seeded_random("readers")
  command = [sys.executable, "-c", READER, str(store)]
  readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(READERS)]
  killed = draw.choice(readers)
  assert "reading\n" in iter(killed.stdout.readline, "")
  killed.kill()
  digests = {
    reader.communicate(timeout=600)[0].splitlines()[-1]
    for reader in readers
    if reader is not killed
  }
  assert killed.wait() == -signal.SIGKILL
  assert all(reader.returncode == 0 for reader in readers if reader is not killed)
  again = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
  assert digests == {again.stdout.splitlines()[-1]}
  assert files_of(store) == before


@pytest.mark.parametrize(
  "part_bytes", [20_000, 2_000_000], ids=["a part a worker", "a part for all workers"]
)
def test_a_killed_preparation_worker_is_reported_and_the_same_command_goes_on(
  part_bytes, lines, tmp_path
):
  draw = seeded_random("preparation")
  output = tmp_path / "again"
  size = f"--part_bytes={part_bytes}"
  assert prepare_data.main([*flags(lines, tmp_path / "whole", 1), size]) == 0
  command = [sys.executable, "-m", "tools.prepare_data", *flags(lines, output, 2), size]
  preparation = subprocess.Popen(
    command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  )
  begun = output / ".train.incomplete" / "tokens"
  helpers = []
  enough = draw.randint(
    1, max(1, len(list((tmp_path / "whole" / "train" / "tokens").iterdir())) // 3)
  )
  while preparation.poll() is None and not (
    begun.is_dir() and len(list(begun.iterdir())) >= enough
  ):
    helpers = psutil.Process(preparation.pid).children(recursive=True)
  workers = [
    process
    for process in helpers
    if process.is_running() and "spawn_main" in " ".join(process.cmdline())
  ]
  draw.choice(workers).kill()
  _, said = preparation.communicate(timeout=600)
  assert preparation.returncode == 2, said
  assert "a tokenising process was killed" in said, said
  assert "Traceback" not in said, said
  assert not psutil.wait_procs(helpers, timeout=60)[1], "its other processes went on without it"
  assert not (output / "train").exists()
  assert prepare_data.main(command[3:]) == 0
  assert files_of(tmp_path / "whole") == files_of(output)
