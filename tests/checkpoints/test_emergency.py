"""Emergency copies restore the last steps of a run bit for bit, or else the checkpoint does."""

import os
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import json_lines
from refusals import refuses
from t5x_like.checkpoints import emergency_steps
from t5x_like.checkpoints.emergency import EmergencyCheckpoints, check_options
from t5x_like.checkpoints.emergency_steps import receive_from_replicas
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import NumericError
from t5x_like.parallel.mesh import make_mesh


@pytest.fixture(scope="module")
def shardings():
  mesh = make_mesh({"replica": 2, "fsdp": 4})

  def make_sharding(*parts):
    return NamedSharding(mesh, P(*parts))

  return {
    "params": {"w": make_sharding("fsdp"), "b": make_sharding(None, "fsdp")},
    "flags": make_sharding("fsdp"),
    "step": make_sharding(),
  }


def make_state(step, shardings):
  draw = np.random.default_rng(step)
  values = {
    "params": {
      "w": draw.standard_normal((8, 3), np.float32),
      "b": draw.standard_normal((2, 4)).astype(jnp.bfloat16),
    },
    "flags": draw.random(4) < 0.5,
    "step": np.int32(step),
  }
  return jax.tree.map(jax.device_put, values, shardings)


def abstract_state(shardings):
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), make_state(0, shardings)
  )


def open_run(folder, name="run"):
  return EmergencyCheckpoints(
    folder / name / "checkpoints", {"directory": str(folder / "near"), "every": 1}, every=100
  )


def restored_step(folder, shardings, name="run", content: int | None = None) -> int | None:
  """Return the step that a run restores, and check that it has the content of that step."""
  with open_run(folder, name) as run:
    restored = run.restore(abstract_state(shardings))
  if restored is None:
    return None
  assert_is_state(restored[1], restored[0] if content is None else content, shardings)
  return restored[0]


def assert_is_state(restored, step, shardings):
  leaves = zip(jax.tree.leaves(restored), jax.tree.leaves(make_state(step, shardings)), strict=True)
  for array, expected in leaves:
    np.testing.assert_array_equal(array, expected)


def copy_steps(run, steps, shardings):
  for step in steps:
    run.save_copy(step, make_state(step, shardings), {"of": step}, lambda: None)


@pytest.fixture
def killed_run(tmp_path, shardings):
  """Return a run that copied steps 1 to 3, saved none, and ended."""
  with open_run(tmp_path) as run:
    assert run.restore(abstract_state(shardings)) is None
    copy_steps(run, (1, 2, 3), shardings)
  return tmp_path


def copy_names(folder):
  return sorted(path.name for path in (folder / "near").glob("*/*"))


def test_newest_copy_is_restored_exactly_and_saved_as_a_checkpoint(killed_run, shardings):
  assert copy_names(killed_run) == ["2-0", "3-0"]  # only the last two steps stay
  with open_run(killed_run) as run:
    step, restored, metadata = run.restore(abstract_state(shardings))
    assert step == 3
    assert metadata == {"of": 3}
    assert_is_state(restored, 3, shardings)
    metadata.clear()  # must not change what the run saves
    run.wait()
    assert run.steps() == [3]
    assert Checkpoints.restore(run, {}, 3)[2] == {"of": 3}
    copy_steps(run, [4], shardings)
  assert copy_names(killed_run) == ["3-0", "4-0"]


@pytest.mark.parametrize(
  "start_steps, expected", [([0], 3), ([0, 2], 2), ([0, 5, 1], None), (["3"], 3)]
)
def test_copies_do_not_count_after_a_later_start_from_elsewhere(
  start_steps, expected, killed_run, shardings
):
  """The history of the run has one line for each start, with the step that it began from."""
  json_lines.write(killed_run / "run" / "history.jsonl", [{"step": step} for step in start_steps])
  assert restored_step(killed_run, shardings) == expected


@pytest.mark.parametrize("damaged, expected", [(["5-0"], 4), (["5-0", "4-0"], 3)])
def test_damaged_copies_fall_back_to_the_previous_copy_and_then_to_the_checkpoint(
  damaged, expected, killed_run, shardings, caplog
):
  with open_run(killed_run) as run:
    run.restore(abstract_state(shardings))  # also saves step 3 as a checkpoint
    copy_steps(run, (4, 5), shardings)
  for name in damaged:
    (pieces,) = (killed_run / "near").glob(f"*/{name}/pieces.bin")
    content = bytearray(pieces.read_bytes())
    content[7] ^= 1
    pieces.write_bytes(content)
  assert restored_step(killed_run, shardings) == expected
  assert "differs from its checksum" in caplog.text


@pytest.mark.parametrize(
  "damaged, copies_damaged, expected", [([6], False, 5), ([6, 2], False, 5), ([6], True, 2)]
)
def test_copy_newer_than_the_intact_checkpoint_is_preferred(
  damaged, copies_damaged, expected, tmp_path, shardings, monkeypatch
):
  monkeypatch.setattr("t5x_like.checkpoints.manager._SECOND_READ_DELAY_SECONDS", 0)
  with open_run(tmp_path) as run:
    run.restore(abstract_state(shardings))
    run.save(2, make_state(2, shardings), {})
    copy_steps(run, (4, 5), shardings)
    run.save(6, make_state(6, shardings), {})
  for step in damaged:
    (tmp_path / "run" / "checkpoints" / str(step) / "manifest" / "metadata").write_text("{}")
  if copies_damaged:
    for pieces in (tmp_path / "near").glob("*/*/pieces.bin"):
      pieces.write_bytes(bytes(pieces.stat().st_size))
  assert restored_step(tmp_path, shardings) == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")
@pytest.mark.parametrize("target", ["directory", "link"])
def test_directory_of_another_user_is_refused(target, tmp_path):
  (tmp_path / "home").mkdir()
  near = tmp_path / "near"
  if target == "link":
    near.symlink_to(tmp_path / "home")
    os.lchown(near, 65534, 65534)
  else:
    near.mkdir()
    os.chown(near, 65534, 65534)
  with refuses(f"near: found a {target} of another user"):
    open_run(tmp_path)


def test_world_writable_directory_is_refused(tmp_path):
  near = tmp_path / "near"
  near.mkdir()
  near.chmod(0o777)
  with refuses("chmod o-w"):
    open_run(tmp_path)
  near.chmod(0o1777)
  open_run(tmp_path).close()


def test_copies_of_another_run_or_of_abandoned_steps_do_not_count(killed_run, shardings):
  assert restored_step(killed_run, shardings, "other") is None
  with open_run(killed_run) as run:
    run.set_aside(0, "set_aside")
  with open_run(killed_run) as run:
    assert run.restore(abstract_state(shardings)) is None
    run.save_copy(1, make_state(7, shardings), {}, lambda: None)
  assert restored_step(killed_run, shardings, content=7) == 1


def test_newer_checkpoint_is_preferred_to_copies(killed_run, shardings):
  with open_run(killed_run) as run:
    run.restore(abstract_state(shardings))
    run.save(9, make_state(9, shardings), {})
  assert restored_step(killed_run, shardings) == 9


def test_state_that_is_not_finite_is_not_copied(killed_run, shardings):
  bad_state = make_state(4, shardings)
  bad_state["params"]["w"] /= 0
  with open_run(killed_run) as run:
    run.restore(abstract_state(shardings))
    with refuses("params/w", error=NumericError):
      run.save_copy(4, bad_state, {}, None)


def test_full_disk_leaves_the_last_complete_copy(killed_run, shardings, caplog, monkeypatch):
  def fail(*_):
    raise OSError(28, "full")

  with open_run(killed_run) as run:
    run.restore(abstract_state(shardings))
    monkeypatch.setattr(emergency_steps.np, "ascontiguousarray", fail)
    copy_steps(run, (4, 5), shardings)
  assert "no emergency copy: full" in caplog.text
  assert copy_names(killed_run) == ["3-0"]


def test_receiving_from_replicas_preserves_bits(shardings):
  """Payloads of NaNs, minus zero, bfloat16 and Booleans keep their bits."""
  tree = make_state(1, shardings)
  bits = np.array([[np.nan, -0.0, -np.inf]] * 8, np.float32).view(np.uint32) ^ 5
  tree["params"]["w"] = jax.device_put(bits.view(np.float32), shardings["params"]["w"])
  for array in jax.tree.leaves(tree):
    slices = {}
    for shard in array.addressable_shards:
      slices[emergency_steps._shard_start(shard.index)] = np.asarray(shard.data)
    target = jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)
    received = np.asarray(receive_from_replicas(target, slices))
    assert received.tobytes() == np.asarray(array).tobytes()
    assert not np.any(receive_from_replicas(target, None))


class Device:
  def __init__(self, number):
    self.process_index = number


class TwoSliceSharding:
  """A stand-in for a sharding of 8 rows over the 2 processes of each of 2 slices."""

  def devices_indices_map(self, shape):
    return {Device(i): (slice(4 * (i % 2), 4 * (i % 2) + 4),) for i in range(4)}


def test_two_of_four_processes_cover_the_state_if_they_have_both_halves():
  def covers(*processes):
    has_copy = np.isin(np.arange(4), processes).tobytes()
    return emergency_steps._is_covered(TwoSliceSharding(), (8,), has_copy)

  assert covers(0, 1)
  assert covers(0, 3)
  assert not covers(0, 2)


@pytest.mark.parametrize(
  "first, places, held",
  [
    ((0, 1, 0, 1), (0, 1, 2, 3), (1, 1, 1, 1)),
    ((0, 1, -1, -1), (0, 1, 2, 3), (1, 1, 0, 0)),  # the disks of a slice are empty
    ((1, 0, 1, 0), (1, 0, 3, 2), (1, 1, 1, 1)),  # the hosts of each slice changed places
    ((-1, 0, 1, -1), (2, 0, 1, 3), (1, 1, 0, 0)),  # the hosts of one slice are now in two
    ((0, 0, 0, -1), (0, 1, 2, 3), (1, 0, 1, 0)),  # three processes have the same half
  ],
)
def test_each_process_reads_for_a_process_that_needs_its_copy(first, places, held, monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 4)
  needs = emergency_steps.ShardNeeds(
    {"w": types.SimpleNamespace(shape=(8,), sharding=TwoSliceSharding())}
  )
  readers, held_P = needs.assign(np.array(first))
  assert readers == places
  assert tuple(held_P) == held


@pytest.mark.parametrize(
  "values, message",
  [
    ({"directory": "gs://b/x"}, "expected an absolute path"),
    ({"directory": "/x", "evrey": 3}, "did you mean 'every'"),
    ({"every": 3}, "missing"),
  ],
)
def test_invalid_options_are_refused_by_name(values, message):
  with refuses(message):
    check_options(values)


@pytest.mark.parametrize(
  "directory, message",
  [("$NO_SUCH_VARIABLE/x", "NO_SUCH_VARIABLE"), ("/proc/none", "cannot be created")],
)
def test_unusable_directory_is_refused_before_the_first_step(directory, message, tmp_path):
  with refuses(message):
    EmergencyCheckpoints(tmp_path / "checkpoints", {"directory": directory, "every": 1})


def test_copies_behind_a_symbolic_link_do_not_count(killed_run, shardings):
  (start,) = (killed_run / "near").iterdir()
  start.rename(killed_run / "elsewhere")
  start.symlink_to(killed_run / "elsewhere")
  assert restored_step(killed_run, shardings) is None
