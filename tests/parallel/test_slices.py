"""Meshes can be made on all TPU slices, and only the hosts that need a row read it."""

import json
import subprocess
import sys

import numpy as np
import pytest

from runs import REPO, losses, run, train
from t5x_like.errors import UserError
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules, rows_by_process
from t5x_like.planning import hardware
from tests.parallel import layouts

SLICES = layouts.read()
MESHES = [{"data": -1}, {"fsdp": -1}, {"data": -1, "tensor": 4}, {"data": 4, "fsdp": -1}]
LARGE_SLICES = [(name, 1) for name in ("v5e:8x8", "v5e:16x16", "v5p:4x4x4", "v6e:8x8", "v4:2x4x4")]
MORE_MESHES = [
  *MESHES,
  {"fsdp": 8, "tensor": -1},
  {"fsdp": 2, "sequence": 2, "tensor": 2, "data": -1},
]


def assert_hosts_read_their_rows(devices, sizes, rows=2):
  """Make the mesh, compare the rows of each host with the rows of its devices, return the mesh."""
  rules = Rules.make(make_mesh(sizes, devices))
  batch = rows * rules.ways("batch")
  rows_of_process = rows_by_process(rules.batch(), batch)
  expected = {device.process_index: set() for device in devices}
  readers = np.zeros(batch, int)
  mesh = rules.mesh
  for coordinates, device in np.ndenumerate(mesh.devices):
    # The shard of the batch that this device holds: batch axes in row-major order.
    shard = 0
    for axis in rules.table["batch"]:
      shard = shard * mesh.shape[axis] + coordinates[mesh.axis_names.index(axis)]
    process_rows = range(shard * rows, (shard + 1) * rows)
    expected[device.process_index].update(process_rows)
    readers[list(process_rows)] += 1
  assert rows_of_process.keys() == expected.keys()
  for process, process_rows in expected.items():
    assert rows_of_process[process].tolist() == sorted(process_rows)
  assert (readers == len(devices) // rules.ways("batch")).all()
  if rules.ways("batch") == len(devices):
    assert sum(map(len, rows_of_process.values())) == batch  # each row exactly once
  return mesh


@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.parametrize("topology", LARGE_SLICES, ids=str)
def test_hosts_of_large_slices_read_only_their_rows(topology, sizes):
  assert_hosts_read_their_rows(SLICES[topology], sizes)


@pytest.mark.parametrize("topology", [key for key in SLICES if key not in LARGE_SLICES], ids=str)
def test_hosts_of_other_slices_read_only_their_rows(topology):
  devices = SLICES[topology]
  slices = topology[1]
  for sizes in MORE_MESHES if len(devices) >= 16 else [{"data": -1}]:
    mesh = assert_hosts_read_their_rows(
      devices, sizes | ({"replica": slices} if slices > 1 else {})
    )
    if slices > 1:  # a replica is one slice, which no other axis leaves
      for slice_mesh in mesh.devices:
        assert len({device.slice_index for device in slice_mesh.flat}) == 1
  if slices > 1:
    with pytest.raises(UserError, match=f"set mesh.replica={slices}"):
      make_mesh({"data": -1}, devices)


def test_gpu_nodes_can_be_slices():
  kinds = {"core_on_chip": 0, "coords": (), "device_kind": "NVIDIA H200", "platform": "gpu"}
  devices = [
    layouts.Device(i, process_index=i // 8, slice_index=i // 8, **kinds) for i in range(32)
  ]
  for sizes in (
    {"data": -1},
    {"replica": 4, "fsdp": -1},
    {"data": 4, "tensor": 8},
    {"fsdp": 16, "tensor": 2},
  ):
    mesh = assert_hosts_read_their_rows(devices, sizes)
    if "fsdp" not in sizes or "replica" in sizes:
      assert [d.slice_index for d in mesh.devices.flat] == [i // 8 for i in range(32)]


@pytest.mark.heavy
@pytest.mark.parametrize(
  "topology, sizes", [("v5e:4x4", {"data": -1}), ("v5e:4x8", {"data": 8, "fsdp": 4})], ids=str
)
def test_training_on_the_hosts_of_a_slice_equals_one_device(topology, sizes, tmp_path):
  """2 or more real processes have CPU devices that are arranged like the devices of a slice."""
  devices = SLICES[topology, 1]
  hosts = len({device.process_index for device in devices})
  flags = [
    "--config.batch_size=32",
    "--config.total_steps=4",
    "--config.checkpoint.every=4",
    "--config.model.dropout=0.0",
  ]
  code, output = run(train(tmp_path / "one", *flags), cache=tmp_path / "compiled")
  assert code == 0, output
  mesh_flags = [f"--config.mesh.{axis}={size}" for axis, size in sizes.items()]
  arranged = train(tmp_path / "slice", *flags, *mesh_flags)
  arranged[1:3] = ["-m", "tests.parallel.arranged", topology]
  launcher = [
    arranged[0],
    "launch/local.py",
    f"--processes={hosts}",
    f"--devices_per_process={len(devices) // hosts}",
  ]
  code, output = run([*launcher, "--", *arranged], cache=tmp_path / "compiled")
  assert code == 0, output
  assert f"of {hosts} processes" in output, output
  slice_losses = losses(tmp_path / "slice")
  single_losses = losses(tmp_path / "one")
  assert len(slice_losses) == 4
  np.testing.assert_allclose(slice_losses, single_losses, atol=1e-5)


@pytest.mark.heavy
def test_stored_layouts_equal_the_compilers():
  """Also make meshes of a pod with 3,072 hosts."""
  try:
    hardware.library()
  except UserError as error:
    pytest.skip(str(error))
  program = (
    "import json, sys\nsys.path.append('tests')\nfrom tests.parallel.layouts import *\n"
    "from tests.parallel.test_slices import assert_hosts_read_their_rows\n"
    "from t5x_like.planning import hardware\n"
    "saved = json.loads(FILE.read_text())\n"
    "assert all(saved[f'{name} x {slices}'] == describe(name, slices) for name, slices in "
    "TOPOLOGIES)\n"
    "devices = hardware.devices(hardware.parse('v5p:16x16x48'))\n"
    "assert len({d.process_index for d in devices}) == 3072\n"
    "assert_hosts_read_their_rows(devices, {'fsdp': -1})\n"
    "assert_hosts_read_their_rows(devices, {'data': -1, 'fsdp': 64, 'tensor': 8})\n"
  )
  process = subprocess.run(
    [sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, timeout=600
  )
  assert process.returncode == 0, process.stderr[-2000:]


def test_every_topology_has_one_stored_layout():
  written = json.loads(layouts.FILE.read_text())
  assert set(SLICES) == set(layouts.TOPOLOGIES)
  assert len(written) == len(SLICES)
