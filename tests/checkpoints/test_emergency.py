"""Emergency copies restore the run's last steps bit for bit, or leave it to the checkpoint."""

import json
import os
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from t5x_like.checkpoints import emergency_steps
from t5x_like.checkpoints.emergency import EmergencyCheckpoints, check_options
from t5x_like.checkpoints.emergency_steps import receive_from_replicas
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import NumericError, UserError
from t5x_like.parallel.mesh import make_mesh


@pytest.fixture(scope="module")
def shardings():
  mesh = make_mesh({"replica": 2, "fsdp": 4})

  def sharding_of(*parts):
    return NamedSharding(mesh, P(*parts))

  return {
    "params": {"w": sharding_of("fsdp"), "b": sharding_of(None, "fsdp")},
    "odd": sharding_of("fsdp"),
    "step": sharding_of(),
  }


def state(step, shardings):
  draw = np.random.default_rng(step)
  values = {
    "params": {
      "w": draw.standard_normal((8, 3), np.float32),
      "b": draw.standard_normal((2, 4)).astype(jnp.bfloat16),
    },
    "odd": draw.random(4) < 0.5,
    "step": np.int32(step),
  }
  return jax.tree.map(jax.device_put, values, shardings)


def abstract(shardings):
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state(0, shardings)
  )


def is_same(tree, restored):
  pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(restored), strict=True)
  return all(np.array_equal(array, restored_array) for array, restored_array in pairs)


def open_run(where, name="run"):
  return EmergencyCheckpoints(
    where / name / "checkpoints", {"directory": str(where / "near"), "every": 1}, every=100
  )


@pytest.fixture
def killed_run(tmp_path, shardings):
  """Return a run that copied steps 1 to 3, saved none, and ended."""
  run = open_run(tmp_path)
  assert run.restore(abstract(shardings)) is None
  for step in (1, 2, 3):
    run.save_copy(step, state(step, shardings), {"of": step}, lambda: None)
  run.close()
  return tmp_path


def copies(where):
  return sorted(path.name for path in (where / "near").glob("*/*"))


def test_the_newest_copy_is_restored_bit_for_bit_and_saved(killed_run, shardings):
  assert copies(killed_run) == ["2-0", "3-0"]  # the last two
  with open_run(killed_run) as run:
    step, restored, metadata = run.restore(abstract(shardings))
    assert (step, metadata) == (3, {"of": 3})
    assert is_same(restored, state(3, shardings))
    metadata.clear()  # the caller's own
    run.wait()
    assert run.steps() == [3]
    assert Checkpoints.restore(run, {}, 3)[2] == {"of": 3}
    run.save_copy(4, state(4, shardings), {}, lambda: None)
  assert copies(killed_run) == ["3-0", "4-0"]


@pytest.mark.parametrize("lines, expected", [([0], 3), ([0, 2], 2), ([0, 5, 1], None), (["3"], 3)])
def test_the_history_tells_of_starts_without_copies(lines, expected, killed_run, shardings):
  """It has a line for the start that made the copies, and for later ones."""
  rows = "".join(json.dumps({"step": step}) + "\n" for step in lines)
  (killed_run / "run" / "history.jsonl").write_text(rows)
  with open_run(killed_run) as run:
    restored = run.restore(abstract(shardings))
  assert (restored and restored[0]) == expected


@pytest.mark.parametrize("damaged, expected", [(["5-0"], 4), (["5-0", "4-0"], 3)])
def test_damage_leads_to_the_copy_before_and_then_to_the_checkpoint(
  damaged, expected, killed_run, shardings, caplog
):
  with open_run(killed_run) as run:
    run.restore(abstract(shardings))  # saves step 3 too
    run.save_copy(4, state(4, shardings), {}, lambda: None)
    run.save_copy(5, state(5, shardings), {}, lambda: None)
  for name in damaged:
    for data in (killed_run / "near").glob(f"*/{name}/pieces.bin"):
      content = bytearray(data.read_bytes())
      content[7] ^= 1
      data.write_bytes(content)
  with open_run(killed_run) as run:
    step, restored, _ = run.restore(abstract(shardings))
    assert step == expected
    assert is_same(restored, state(expected, shardings))
  assert "differs from its checksum" in caplog.text


@pytest.mark.parametrize(
  "damaged, copies_damaged, expected", [([6], False, 5), ([6, 2], False, 5), ([6], True, 2)]
)
def test_a_copy_that_is_newer_than_the_intact_checkpoint_comes_first(
  damaged, copies_damaged, expected, tmp_path, shardings, monkeypatch
):
  monkeypatch.setattr("t5x_like.checkpoints.manager._SECOND_LOOK_SECONDS", 0)
  with open_run(tmp_path) as run:
    run.restore(abstract(shardings))
    run.save(2, state(2, shardings), {})
    for step in (4, 5):
      run.save_copy(step, state(step, shardings), {}, lambda: None)
    run.save(6, state(6, shardings), {})
  for step in damaged:
    (tmp_path / "run" / "checkpoints" / str(step) / "manifest" / "metadata").write_text("{}")
  for data in (tmp_path / "near").glob("*/*/pieces.bin") if copies_damaged else ():
    data.write_bytes(bytes(data.stat().st_size))
  with open_run(tmp_path) as run:
    step, restored, _ = run.restore(abstract(shardings))
    assert step == expected
    assert is_same(restored, state(expected, shardings))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")
@pytest.mark.parametrize("whose", ["directory", "link"])
def test_a_directory_of_another_user_is_refused(whose, tmp_path):
  (tmp_path / "home").mkdir()
  near = tmp_path / "near"
  if whose == "link":
    near.symlink_to(tmp_path / "home")
    os.lchown(near, 65534, 65534)
  else:
    near.mkdir()
    os.chown(near, 65534, 65534)
  with pytest.raises(UserError, match=f"near: found a {whose} of another user"):
    open_run(tmp_path)


def test_a_directory_that_every_user_may_change_is_refused(tmp_path):
  near = tmp_path / "near"
  near.mkdir()
  near.chmod(0o777)
  with pytest.raises(UserError, match="chmod o-w"):
    open_run(tmp_path)
  near.chmod(0o1777)
  open_run(tmp_path).close()


def test_copies_of_another_run_or_of_abandoned_steps_do_not_count(killed_run, shardings):
  with open_run(killed_run, "other") as run:
    assert run.restore(abstract(shardings)) is None
  with open_run(killed_run) as run:
    run.set_aside(0, "set_aside")
  with open_run(killed_run) as run:
    assert run.restore(abstract(shardings)) is None
    run.save_copy(1, state(7, shardings), {}, lambda: None)
  with open_run(killed_run) as run:
    assert is_same(run.restore(abstract(shardings))[1], state(7, shardings))


def test_a_newer_checkpoint_comes_first_and_failing_copies_are_reported(
  killed_run, shardings, caplog, monkeypatch
):
  with open_run(killed_run) as run:
    run.restore(abstract(shardings))
    run.save(9, state(9, shardings), {})
    monkeypatch.setattr(
      emergency_steps, "open", lambda *_: (_ for _ in ()).throw(OSError(28, "full")), raising=False
    )
    run.save_copy(9, state(9, shardings), {}, lambda: None)
    with pytest.raises(NumericError, match="params/w"):
      run.save_copy(
        10,
        jax.tree.map(lambda x: x / 0 if x.dtype == jnp.float32 else x, state(10, shardings)),
        {},
        None,
      )
  assert "no emergency copy: full" in caplog.text
  with open_run(killed_run) as run:
    assert run.restore(abstract(shardings))[0] == 9


def test_a_full_disk_leaves_the_last_whole_copy(killed_run, shardings, monkeypatch):
  with open_run(killed_run) as run:
    run.restore(abstract(shardings))
    monkeypatch.setattr(
      emergency_steps.np, "ascontiguousarray", lambda _: (_ for _ in ()).throw(OSError(28, "full"))
    )
    for step in (4, 5):
      run.save_copy(step, state(step, shardings), {}, lambda: None)
  assert copies(killed_run) == ["3-0"]


def test_bits_survive_the_mesh(shardings):
  """NaN with its payload, minus zero, 16 bits and Booleans keep their bits."""
  saved_state = state(1, shardings)
  saved_state["params"]["w"] = jax.device_put(
    np.array([[np.nan, -0.0, -np.inf]] * 8, np.float32).view(np.uint32).__xor__(5).view(np.float32),
    shardings["params"]["w"],
  )
  for x in jax.tree.leaves(saved_state):
    stored_slices = {
      emergency_steps._start(shard.index): np.asarray(shard.data) for shard in x.addressable_shards
    }
    target = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
    assert (
      np.asarray(receive_from_replicas(target, stored_slices)).tobytes() == np.asarray(x).tobytes()
    )
    assert not np.any(receive_from_replicas(target, None))


class Device:
  def __init__(self, number):
    self.process_index = number


class OfTwoSlices:
  """Stand in for a sharding of 8 rows over the 2 processes of a slice, on each of 2 slices."""

  def devices_indices_map(self, shape):
    return {Device(i): (slice(4 * (i % 2), 4 * (i % 2) + 4),) for i in range(4)}


def test_two_of_four_processes_cover_the_state_if_they_have_both_halves():
  def covers(*held):
    return emergency_steps._is_covered(OfTwoSlices(), (8,), np.isin(np.arange(4), held).tobytes())

  assert covers(0, 1)
  assert covers(0, 3)
  assert not covers(0, 2)


@pytest.mark.parametrize(
  "first, places, held",
  [
    ((0, 1, 0, 1), (0, 1, 2, 3), (1, 1, 1, 1)),
    ((0, 1, -1, -1), (0, 1, 2, 3), (1, 1, 0, 0)),  # a slice with empty disks
    ((1, 0, 1, 0), (1, 0, 3, 2), (1, 1, 1, 1)),  # hosts have changed places
    ((-1, 0, 1, -1), (2, 0, 1, 3), (1, 1, 0, 0)),  # so that one slice went on two
    ((0, 0, 0, -1), (0, 1, 2, 3), (1, 0, 1, 0)),  # three have the same half
  ],
)
def test_each_process_reads_for_one_that_needs_what_it_holds(first, places, held, monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 4)
  needs = emergency_steps.ShardNeeds(
    {"w": types.SimpleNamespace(shape=(8,), sharding=OfTwoSlices())}
  )
  readers, held_P = needs.assign(np.array(first))
  assert (readers, tuple(held_P)) == (places, held)


@pytest.mark.parametrize(
  "values, message",
  [
    ({"directory": "gs://b/x"}, "expected an absolute path"),
    ({"directory": "/x", "evrey": 3}, "did you mean 'every'"),
    ({"every": 3}, "missing"),
  ],
)
def test_bad_options_are_refused_by_name(values, message):
  with pytest.raises(UserError, match=message):
    check_options(values)


@pytest.mark.parametrize(
  "directory, message",
  [("$NO_SUCH_VARIABLE/x", "NO_SUCH_VARIABLE"), ("/proc/none", "cannot be made")],
)
def test_a_bad_directory_is_refused_before_the_first_step(directory, message, tmp_path):
  with pytest.raises(UserError, match=message):
    EmergencyCheckpoints(tmp_path / "checkpoints", {"directory": directory, "every": 1})


def test_copies_behind_a_link_do_not_count(killed_run, shardings):
  (start,) = (killed_run / "near").iterdir()
  start.rename(killed_run / "elsewhere")
  start.symlink_to(killed_run / "elsewhere")
  with open_run(killed_run) as run:
    assert run.restore(abstract(shardings)) is None
