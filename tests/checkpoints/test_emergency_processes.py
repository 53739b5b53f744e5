"""Four processes restore emergency copies after hosts changed places and one lost its disk."""

import subprocess
import sys

import pytest

from tests.runs import REPO

pytestmark = pytest.mark.runs
PROGRAM = """
import sys
sys.path[:0] = [{repo!r}]
from t5x_like.errors import handle_errors
from t5x_like.parallel import distributed

@handle_errors
def main():
  distributed.initialize(timeout_seconds=60)
  import jax, numpy as np
  from jax.sharding import NamedSharding, PartitionSpec as P
  from t5x_like.checkpoints.emergency import EmergencyCheckpoints
  from t5x_like.parallel.mesh import make_mesh
  mesh = make_mesh({{"replica": 2, "fsdp": 2, "tensor": 2}})
  shardings = {{"w": P("fsdp", "tensor"), "v": P("tensor"), "n": P()}}
  def state(step):
    w = np.random.default_rng(step).standard_normal((64, 256)).astype(np.float32)
    return {{k: jax.make_array_from_callback(x.shape, NamedSharding(mesh, shardings[k]), lambda i, x=x: x[i])
            for k, x in {{"w": w, "v": w[0] > 0, "n": np.int32(step)}}.items()}}
  abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state(0))
  options = {{"directory": {directory!r} + "/$T5X_LIKE_HOST", "every": 1}}
  with EmergencyCheckpoints({directory!r} + "/run/checkpoints", options) as run:
    restored = run.restore(abstract)
    start = restored[0] if restored else 0
    for a, b in zip(jax.tree.leaves(restored[1]), jax.tree.leaves(state(start))) if restored else ():
      assert a.sharding == b.sharding
      assert all(np.array_equal(x.data, y.data) for x, y in zip(a.addressable_shards, b.addressable_shards))
    for step in range(start + 1, start + 4):
      run.save_copy(step, state(step), {{"step": step}}, lambda: None)
  print("from", start, "copies", sorted(p.name for p in run._nearby._store._directory.glob("*/*")), flush=True)

sys.exit(main())
"""


def launch(directory) -> list[str]:
  program = PROGRAM.format(repo=str(REPO), directory=str(directory))
  command = [
    sys.executable,
    str(REPO / "launch" / "local.py"),
    "--processes=4",
    "--devices_per_process=2",
    "--",
  ]
  process = subprocess.run(
    [*command, sys.executable, "-c", program], capture_output=True, text=True, timeout=600
  )
  assert process.returncode == 0, (process.stdout, process.stderr)
  return process.stdout.splitlines()


def test_copies_are_restored_after_hosts_changed_places(tmp_path):
  lines = launch(tmp_path)
  assert {f"[p{p}] from 0 copies ['2-{p}', '3-{p}']" for p in range(4)} <= set(lines)
  for path, partner in (("0", "1"), ("2", "3")):
    (tmp_path / path).rename(tmp_path / "aside")
    (tmp_path / partner).rename(tmp_path / path)
    (tmp_path / "aside").rename(tmp_path / partner)
  for path in (tmp_path / "3").glob("*"):
    path.rename(tmp_path / f"lost-{path.name}")
  lines = launch(tmp_path)
  message = (
    "[p0] step 3: 3 of 4 processes read their emergency copies; the others receive their "
    "shards over the mesh"
  )
  assert message in lines, lines
  assert {f"[p{p}] from 3 copies ['5-{p}', '6-{p}']" for p in range(4)} <= set(lines), lines
