"""Several processes save, restore, skip or refuse a checkpoint together."""

import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from t5x_like.checkpoints.manager import Checkpoints

pytestmark = pytest.mark.runs

REPO = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
sys.path[:0] = [{repo!r}]
from t5x_like.errors import handle_errors
from t5x_like.parallel import distributed

@handle_errors
def main():
  distributed.initialize(timeout_seconds=60)
  import jax, numpy as np, logging
  from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
  from t5x_like.checkpoints.manager import Checkpoints
  logging.basicConfig(format="%(message)s")
  mesh = jax.make_mesh((2, 4), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
  shardings = {{"w": NamedSharding(mesh, P("fsdp", "tensor")), "n": NamedSharding(mesh, P())}}
  def state(step):
    w = np.random.default_rng(step).standard_normal((64, 256)).astype(np.float32)
    return {{k: jax.make_array_from_callback(x.shape, shardings[k], lambda i, x=x: x[i])
            for k, x in {{"w": w, "n": np.int32(step)}}.items()}}
  abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state(0))
  checkpoints = Checkpoints({directory!r}, save_timeout_seconds={timeout})
  if jax.process_index() == 1:
    Checkpoints.steps = lambda self: []  # a stale listing: process 0 decides
  restored = checkpoints.restore(abstract)
  start = restored[0] if restored else 0
  print("from", start, flush=True)
  if restored:
    for a, b in zip(jax.tree.leaves(restored[1]), jax.tree.leaves(state(start))):
      assert all(np.array_equal(x.data, y.data) for x, y in zip(a.addressable_shards, b.addressable_shards))
  for step in range(start + 1, start + 4):
    checkpoints.save(step, state(step), {{"step": step}})
  {after}
  checkpoints.close()
  print("saved", distributed.broadcast_from_first(checkpoints.steps), flush=True)

sys.exit(main())
"""


def launch(directory, after="pass", timeout=60):
  program = PROGRAM.format(repo=str(REPO), directory=str(directory), after=after, timeout=timeout)
  command = [
    sys.executable,
    str(REPO / "launch" / "local.py"),
    "--processes=2",
    "--devices_per_process=4",
    "--grace_seconds=2",
  ]
  process = subprocess.run(
    [*command, "--", sys.executable, "-c", program],
    env=dict(os.environ),
    capture_output=True,
    text=True,
    timeout=600,
  )
  return process.returncode, process.stdout.splitlines(), process.stderr


def test_one_process_restores_a_checkpoint_of_two_and_vice_versa(tmp_path):
  code, lines, err = launch(tmp_path)
  expected = {"[p0] from 0", "[p0] saved [1, 2, 3]", "[p1] from 0", "[p1] saved [1, 2, 3]"}
  assert code == 0, (lines, err)
  assert expected <= set(lines), (lines, err)
  mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
  abstract = {
    "w": jax.ShapeDtypeStruct((64, 256), np.float32, sharding=NamedSharding(mesh, P(None, "data"))),
    "n": jax.ShapeDtypeStruct((), np.int32, sharding=NamedSharding(mesh, P())),
  }
  with Checkpoints(tmp_path) as checkpoints:
    step, state, metadata = checkpoints.restore(abstract)
    assert step == 3
    assert int(state["n"]) == 3
    assert metadata == {"step": 3}
    expected = np.random.default_rng(3).standard_normal((64, 256)).astype(np.float32)
    assert np.array_equal(np.asarray(state["w"]), expected)
    checkpoints.save(4, {"w": state["w"], "n": state["n"] + 1}, {"step": 4})
  for file in (tmp_path / "4" / "state").rglob("d/*"):
    file.write_bytes(file.read_bytes()[:-40])
  code, lines, err = launch(tmp_path)
  assert code == 0, (lines, err)
  assert "[p0] from 3" in lines
  assert "[p1] from 3" in lines
  assert "[p1] saved [4, 5, 6]" in lines
  assert any("step 4 is damaged and is skipped" in line for line in lines)
  assert (tmp_path / "4.damaged").exists()


def test_a_failed_save_of_one_process_ends_the_job_and_harms_no_step(tmp_path):
  saved = launch(tmp_path)
  assert saved[0] == 0, saved
  limit = (
    "import resource; checkpoints.wait()\n"
    "  if jax.process_index() == 1: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
    "  checkpoints.save(9, state(9), {})"
  )
  code, lines, err = launch(tmp_path, after=limit, timeout=4)
  errors = [line for line in lines if "error:" in line]
  assert code == 2, (lines, err)
  assert "process 1 failed" in err, (lines, err)
  assert any("File too large" in line for line in errors), (lines, err)
  assert any("not written by all processes within 4 s" in line for line in errors), lines
  assert not any("Traceback" in line for line in lines), "\n".join(lines)
  assert Checkpoints(tmp_path).steps() == [4, 5, 6]
