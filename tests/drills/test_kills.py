"""Runs that are killed at seeded random moments end with the bits of one that is not (`make
test-drills`).

Small as they stand; `T5X_LIKE_KILLS=100` kills 100 times in one process, and 25 times in two and on
an object store. Every start is a process of its own that runs the command and reads its
programs from a cache.
"""

import pytest

from tests import object_server
from tests.drills.kills import FLAGS, Drill, assert_same_record, saving_objects
from tests.drills.moments import kills, seeded_random
from tests.runs import assert_same_bits, run_to_end, train

pytestmark = pytest.mark.drill
STEPS_PER_KILL = 12
PAIR = ["launch/local.py", "--processes=2", "--devices_per_process=1", "--grace_seconds=5", "--"]


def steps(count: int) -> int:
  return 30 + STEPS_PER_KILL * count


@pytest.fixture(scope="module")
def process_options(tmp_path_factory):
  return {"cache": tmp_path_factory.mktemp("compiled")}


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_killed_on_a_disk_ends_with_the_same_bits(
  processes, process_options, tmp_path, capsys
):
  count = kills(5) if processes == 1 else kills(3, share=4)
  total = steps(count)
  launcher = [] if processes == 1 else [train("")[0], *PAIR]

  def command(workdir):
    return [*launcher, *train(workdir, *FLAGS, f"--config.total_steps={total}")]

  run_to_end(command(tmp_path / "whole"), **process_options)
  name = f"{processes} on a disk"
  with capsys.disabled():
    drill = Drill(
      command(tmp_path / "killed"),
      tmp_path / "killed",
      total,
      seeded_random(name),
      process_options,
      processes > 1,
    )
    drill.run(count)
  assert_same_record(tmp_path / "killed", tmp_path / "whole", total)
  assert_same_bits(tmp_path / "killed", tmp_path / "whole", total)
  with capsys.disabled():
    print(drill.summary(name))


@pytest.fixture
def server(tmp_path):
  pytest.importorskip("gcsfs")
  with object_server.serve(tmp_path / "bucket") as server:
    yield server


def test_a_run_killed_on_a_failing_object_store_ends_with_the_same_bits(
  process_options, server, capsys
):
  count = kills(3, share=4)
  total = steps(count)

  def command(name):
    return train(f"gs://bucket/{name}", *FLAGS, f"--config.total_steps={total}")

  run_to_end(command("whole"), **process_options)
  server.unavailable = 0.15
  server.throttled = 0.10
  server.failing = 0.05
  server.broken = 0.05
  workdir = server.root / "killed"
  name = "on an object store"
  with capsys.disabled():
    drill = Drill(
      command("killed"), workdir, total, seeded_random(name), process_options, saving=saving_objects
    )
    drill.run(count)
  assert_same_record(workdir, server.root / "whole", total)

  def tensors(name):
    files = (server.root / name).glob(f"checkpoints/{total}-*/tensors-*.bin")
    return {file.name: file.read_bytes() for file in files}

  assert tensors("killed") == tensors("whole")
  assert tensors("killed")
  with capsys.disabled():
    print(f"{drill.summary(name)}\n  {len(server.requests)} requests were answered or failed")
