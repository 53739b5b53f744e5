"""Checkpoints are exact, survive kills and full disks, and damaged ones are never restored."""

import contextlib
import errno
import itertools
import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from refusals import refuses
from t5x_like.checkpoints import manager, orbax_steps
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.checkpoints.tensors import fingerprints
from t5x_like.errors import DamageError, TransientError, UserError
from tests.checkpoints.states import (
  abstract_state,
  assert_restores,
  make_mesh,
  make_state,
  save_step,
  save_steps,
)
from tests.runs import REPO


def tensor_files(directory, step):
  """Return the files with the tensors of a step, the largest first."""
  files = (directory / str(step) / "state").rglob("d/*")
  return sorted(files, key=lambda path: -path.stat().st_size)


def manifest_path(directory, step):
  return directory / str(step) / "manifest" / "metadata"


def test_fingerprints_depend_on_bits_and_positions_but_not_on_sharding():
  state = make_state(3, make_mesh(2, 4))["params"]
  for shape in ((8, 1), (1, 8), (4, 2)):
    assert fingerprints(make_state(3, make_mesh(*shape))["params"]) == fingerprints(state)
  bits = np.asarray(state["embed"]).view(np.uint32).ravel()
  variants = [bits, bits[::-1].copy()]
  for position, bit in [(0, 0), (0, 31), (5, 13), (bits.size - 1, 7)]:
    changed = bits.copy()
    changed[position] ^= np.uint32(1 << bit)
    variants.append(changed)
  assert len({fingerprints({"x": jnp.asarray(variant)})["x"] for variant in variants}) == 6
  arrays_of_dtypes = {
    "half": jnp.ones(3, jnp.float16),
    "flag": jnp.ones(3, bool),
    "byte": jnp.ones(3, jnp.int8),
    "empty": jnp.zeros((0, 4)),
    "scalar": jnp.float32(2),
    "key": jax.random.key(0),
  }
  assert {len(fingerprint) for fingerprint in fingerprints(arrays_of_dtypes).values()} == {16}


def test_restores_exactly_onto_other_meshes(tmp_path):
  save_steps(tmp_path, [7], make_mesh(2, 4))
  for shape in ((2, 4), (8, 1), (1, 8)):
    mesh = make_mesh(*shape)
    assert_restores(tmp_path, 7, mesh)
    _, state, _ = Checkpoints(tmp_path).restore(abstract_state(mesh))
    assert state["params"]["embed"].sharding == NamedSharding(mesh, P("fsdp", "tensor"))


def test_restoring_from_an_absent_directory_does_not_make_it(tmp_path):
  assert Checkpoints(tmp_path / "absent").restore(abstract_state()) is None
  assert not (tmp_path / "absent").exists()


def test_buffers_may_be_donated_as_soon_as_save_returns(tmp_path):
  values = np.arange(1 << 22, dtype=np.float32)
  sharding = NamedSharding(make_mesh(8, 1), P("fsdp"))
  x = jax.device_put(values, sharding)
  overwrite = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
  abstract = {"x": jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)}
  with Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(1, {"x": x}, {})
    for _ in range(3):
      x = overwrite(x)
    jax.block_until_ready(x)
    checkpoints.wait()
    _, state, _ = checkpoints.restore(abstract)
  assert np.array_equal(np.asarray(state["x"]), values)


def test_last_steps_and_multiples_are_retained(tmp_path):
  save_steps(tmp_path, range(1, 10), keep_last=2, keep_every=4)
  assert Checkpoints(tmp_path).steps() == [4, 8, 9]
  assert Checkpoints(tmp_path).restore({}, 8) == (8, {}, {"step": 8})
  with refuses("no checkpoint of step 5; steps here: [4, 8, 9]"):
    Checkpoints(tmp_path).restore({}, 5)


@pytest.mark.parametrize(
  "every, steps, retained",
  [
    (700, [1000, 2000, 3000, 3500], [2000, 3000, 3500]),
    (700, [3000, 3500, 4200, 4900], [3500, 4200, 4900]),
    (1500, [1000, 2000, 3000, 4500], [2000, 3000, 4500]),
    (300, [1000, 2000, 3000, 3010, 3300], [3000, 3010, 3300]),
    (1000, [1000, 2000, 3000, 3010], [1000, 2000, 3000, 3010]),
    (1000, [1000, 2000, 3000, 3010, 3020, 4000], [2000, 3000, 4000]),
    (1000, [10, 20, 30, 40], [20, 30, 40]),
  ],
)
def test_changing_the_interval_deletes_none_of_the_last_steps(every, steps, retained):
  is_kept = manager._Retention(every, 3, None).keeps(steps)
  assert list(itertools.compress(steps, is_kept)) == retained


@pytest.mark.parametrize(
  "number, kind", [(errno.ENOSPC, UserError), (errno.ESTALE, TransientError)]
)
@pytest.mark.parametrize("next_call", ["save", "wait", "close"])
def test_failed_background_save_names_its_own_step(next_call, number, kind, tmp_path):
  checkpoints = Checkpoints(tmp_path)
  failures = []

  def fail():
    if failures:
      raise failures.pop()

  checkpoints._store = types.SimpleNamespace(
    wait=fail,
    close=fail,
    steps=lambda: [4],
    agreed_steps=lambda: [4],
    where=lambda step: f"{tmp_path}/{step}",
    write=lambda *_: failures.append(OSError(number, os.strerror(number))),
  )
  state = {"x": jnp.ones(2)}
  checkpoints.save(5, state, {})
  calls = {
    "save": lambda: checkpoints.save(6, state, {}),
    "wait": checkpoints.wait,
    "close": checkpoints.close,
  }
  with refuses(f"{tmp_path}/5: checkpoint could not be written", "steps saved: [4]", error=kind):
    calls[next_call]()


def test_a_run_that_lost_its_workdir_neither_commits_nor_sets_aside_steps(tmp_path):
  is_lost = threading.Event()
  message = "another process has taken the workdir over"

  def check():
    if is_lost.is_set():
      raise TransientError(message)

  state = {"x": jnp.ones(2)}
  with Checkpoints(tmp_path, keep_last=1, check=check) as checkpoints:
    checkpoints.save(1, state, {})
    checkpoints.wait()
    is_lost.set()
    checkpoints.save(2, state, {})
    with refuses(message, error=TransientError):
      checkpoints.wait()
    with refuses(message, error=TransientError):
      checkpoints.set_aside(0, "set_aside")
  assert Checkpoints(tmp_path).steps() == [1]


def test_saving_a_step_twice_is_refused_unless_equal(tmp_path):
  save_steps(tmp_path, [1, 1])
  other_state = make_state(1) | {"params": make_state(2)["params"]}
  with Checkpoints(tmp_path) as checkpoints:
    with refuses("step exists with other values", "embed"):
      checkpoints.save(1, other_state, {}, finite=False)


def flip_bits(directory, step):
  """Flip one bit in every 500 bytes: a single one could hit an unused node of the database."""
  for path in tensor_files(directory, step):
    content = bytearray(path.read_bytes())
    for position in range(len(content) // 2 % 500, len(content), 500):
      content[position] ^= 0x10
    path.write_bytes(content)


def truncate(directory, step):
  for path in tensor_files(directory, step):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def lose_data(directory, step):
  tensor_files(directory, step)[0].unlink()


def lose_manifest(directory, step):
  manifest_path(directory, step).unlink()


def edit_manifest(directory, step):
  path = manifest_path(directory, step)
  manifest = json.loads(path.read_text())
  manifest["metadata"]["step"] += 1
  path.write_text(json.dumps(manifest))


def copy_previous_manifest(directory, step):
  shutil.copy(manifest_path(directory, step - 1), manifest_path(directory, step))


def empty_tensor_metadata(directory, step):
  (directory / str(step) / "state" / "_METADATA").write_text("1")


def describe_arrays_as_numbers(directory, step):
  (path,) = (directory / str(step) / "state" / "array_metadatas").iterdir()
  path.write_text(json.dumps({"array_metadatas": [1]}))


DAMAGES = [
  flip_bits,
  truncate,
  lose_data,
  lose_manifest,
  edit_manifest,
  copy_previous_manifest,
  empty_tensor_metadata,
  describe_arrays_as_numbers,
]


@pytest.fixture(scope="module")
def saved_steps(tmp_path_factory):
  """Return a directory with steps 1, 2 and 3, which tests must not change."""
  directory = tmp_path_factory.mktemp("saved")
  save_steps(directory, [1, 2, 3])
  return directory


@pytest.fixture
def directory(saved_steps, tmp_path):
  """Return a directory with steps 1, 2 and 3, which tests may change."""
  return shutil.copytree(saved_steps, tmp_path / "copy")


def test_manifest_of_another_step_is_refused(directory):
  copy_previous_manifest(directory, 3)
  with refuses("manifest is of step 2, expected 3", error=DamageError):
    Checkpoints(directory).restore(abstract_state(), step=3)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_step_is_skipped_with_a_warning_and_moved_aside(directory, caplog, damage):
  damage(directory, 3)
  with refuses("3: damaged checkpoint: ", "other steps here: [1, 2]", error=DamageError):
    Checkpoints(directory).restore(abstract_state(), step=3)
  with caplog.at_level(logging.WARNING):
    assert_restores(directory, 2)
  assert "step 3 is damaged and is skipped" in caplog.text
  assert Checkpoints(directory).steps() == [1, 2, 3], "restoring without saving moves nothing"
  with Checkpoints(directory) as checkpoints:
    checkpoints.restore(abstract_state())
    save_step(checkpoints, 3)
    checkpoints.wait()
    assert checkpoints.steps() == [1, 2, 3]
  assert (directory / "3.damaged" / "state").exists()
  assert_restores(directory, 3)


def test_restoring_is_refused_when_every_step_is_damaged(directory):
  flip_bits(directory, 1)
  truncate(directory, 2)
  lose_manifest(directory, 3)
  with refuses("every checkpoint is damaged", "step 2", "step 1", error=DamageError):
    Checkpoints(directory).restore(abstract_state())


@pytest.mark.parametrize(
  "fault, raised, tries",
  [
    (OSError(errno.EIO, "Input/output error"), TransientError, 2),
    (ValueError("UNAVAILABLE: Error reading gs://b/d: HTTP response code: 503"), TransientError, 2),
    (MemoryError("bad_alloc"), UserError, 1),
    (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 64 bytes"), UserError, 1),
    (PermissionError(errno.EACCES, "Permission denied"), UserError, 1),
    (AttributeError("a bug"), AttributeError, 1),
  ],
  ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_read_errors_are_not_taken_for_damage(directory, monkeypatch, fault, raised, tries):
  calls = []

  def fail(*args, **kwargs):
    calls.append(args)
    raise fault

  monkeypatch.setattr(orbax_steps, "read_tensors", fail)
  monkeypatch.setenv("T5X_LIKE_RETRY_SECONDS", "0.6")
  with Checkpoints(directory) as checkpoints:
    with pytest.raises(raised):
      checkpoints.restore(abstract_state())
    assert len(calls) == tries
    monkeypatch.undo()
    assert checkpoints.restore(abstract_state())[0] == 3
    save_step(checkpoints, 4)
  assert not list(directory.glob("*.damaged"))


def test_step_that_can_be_read_at_the_second_try_is_not_damaged(saved_steps, monkeypatch, caplog):
  read_tensors = orbax_steps.read_tensors
  calls = []

  def fail_once(*args, **kwargs):
    calls.append(args)
    if len(calls) == 1:
      raise FileNotFoundError("a listing that lags")
    return read_tensors(*args, **kwargs)

  monkeypatch.setattr(orbax_steps, "read_tensors", fail_once)
  assert_restores(saved_steps, 3)
  assert not caplog.text


def test_error_about_a_flipped_bit_names_the_tensor(tmp_path):
  sharding = NamedSharding(make_mesh(8, 1), P())
  noise = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32)
  with Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(1, {"kernel": jax.device_put(noise, sharding)}, {})
  largest = tensor_files(tmp_path, 1)[0]
  content = bytearray(largest.read_bytes())
  content[len(content) // 2] ^= 0x10
  largest.write_bytes(content)
  abstract = {"kernel": jax.ShapeDtypeStruct(noise.shape, noise.dtype, sharding=sharding)}
  with refuses("kernel", error=DamageError):
    Checkpoints(tmp_path).restore(abstract, 1)


@pytest.mark.parametrize(
  "change, message",
  [
    (
      lambda embed, scale: {"embed": embed.update(shape=(64, 48)), "scale": scale},
      "params/embed is float32[64, 32], expected float32[64, 48]",
    ),
    (
      lambda embed, scale: {"embed": embed.update(dtype=jnp.bfloat16), "scale": scale},
      "params/embed is float32[64, 32], expected bfloat16[64, 32]",
    ),
    (
      lambda embed, scale: {"embed": embed},
      "params/scale bfloat16[24] is in the checkpoint, expected no such tensor",
    ),
    (
      lambda embed, scale: {"embeds": embed, "scale": scale},
      "params/embeds is not in the checkpoint (did you mean 'params/embed'?)",
    ),
  ],
)
def test_restoring_other_tensors_is_refused_by_name(change, message, saved_steps):
  abstract = abstract_state()
  abstract["params"] = change(**abstract["params"])
  with refuses(message):
    Checkpoints(saved_steps).restore(abstract)


def test_full_disk_is_reported_in_one_line_and_harms_no_step(directory):
  noise = jax.device_put(np.random.default_rng(0).standard_normal((512, 1024)).astype(np.float32))
  limit = resource.getrlimit(resource.RLIMIT_FSIZE)
  checkpoints = Checkpoints(directory)
  resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limit[1]))
  try:  # the limit on the size of files stands for a full disk
    with refuses(str(directory), "could not be written: File too large"):
      checkpoints.save(4, {"noise": noise}, {})
      checkpoints.wait()
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
  checkpoints.close()
  assert_restores(directory, 3)


def test_file_in_place_of_the_directory_is_refused(tmp_path):
  (tmp_path / "file").write_text("")
  with refuses("could not be written: Not a directory"):
    save_step(Checkpoints(tmp_path / "file" / "checkpoints"), 1)


SAVE_FOREVER_PROGRAM = """
import itertools, sys
sys.path[:0] = [{repo!r}]
import jax, numpy as np
from t5x_like.checkpoints.manager import Checkpoints
checkpoints = Checkpoints(sys.argv[1], keep_last=2)
start = (checkpoints.steps() or [0])[-1]
if start:
  checkpoints.restore({{"x": jax.ShapeDtypeStruct((64, 1024), np.float32, sharding=jax.sharding.SingleDeviceSharding(
    jax.devices()[0]))}}, None)
print("ready", flush=True)
for step in itertools.count(start + 1):
  x = np.random.default_rng(step).standard_normal((64, 1024)).astype(np.float32)
  checkpoints.save(step, {{"x": jax.device_put(x)}}, {{"step": step}})
"""


def test_newest_committed_step_is_exact_after_a_kill_at_any_moment(tmp_path):
  random = np.random.default_rng(0)
  command = [sys.executable, "-c", SAVE_FOREVER_PROGRAM.format(repo=str(REPO)), str(tmp_path)]
  env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
  quiet = dict(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  abstract = {"x": jax.ShapeDtypeStruct((64, 1024), np.float32, sharding=sharding)}
  newest = 0
  for _ in range(2):  # drills/test_kills.py kills many times
    with subprocess.Popen(command, env=env, **quiet) as process:
      assert process.stdout.readline() == "ready\n"
      deadline = time.time() + 600
      while max(Checkpoints(tmp_path).steps(), default=0) < newest + 3 and time.time() < deadline:
        time.sleep(0.01)
      time.sleep(random.uniform(0, 0.1))
      process.send_signal(signal.SIGKILL)
    step, state, metadata = Checkpoints(tmp_path).restore(abstract)
    assert step >= newest + 3
    assert metadata == {"step": step}
    assert step == max(Checkpoints(tmp_path).steps()), "a committed step is never damaged by a kill"
    expected = np.random.default_rng(step).standard_normal((64, 1024)).astype(np.float32)
    assert np.array_equal(np.asarray(state["x"]), expected)
    newest = step


SAVE_TWICE_PROGRAM = """
import sys
sys.path[:0] = [{repo!r}]
import jax, numpy as np
from t5x_like.checkpoints.manager import Checkpoints
checkpoints = Checkpoints(sys.argv[1])
for step in (1, 2):
  checkpoints.save(step, {{"x": jax.device_put(np.ones(3, np.float32))}}, {{}})
"""


@pytest.mark.skipif(
  (3, 12) <= sys.version_info < (3, 12, 3),
  reason="Python 3.12.0 to 3.12.2 start no thread once the main program has ended (gh-113964)",
)
def test_saving_prints_nothing_and_lets_the_process_end(tmp_path):
  command = [sys.executable, "-c", SAVE_TWICE_PROGRAM.format(repo=str(REPO)), str(tmp_path)]
  env = {**os.environ, "JAX_PLATFORMS": "cpu"}
  process = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
  assert process.returncode == 0
  assert process.stdout == ""
  assert process.stderr == ""
  assert Checkpoints(tmp_path).steps() == [1, 2]
  assert json.loads(manifest_path(tmp_path, 2).read_text())["format"] == "t5x_like.checkpoint.v2"


def test_directory_that_vanishes_while_saving_is_reported_in_one_line(tmp_path):
  directory = tmp_path / "checkpoints"
  with contextlib.suppress(UserError), Checkpoints(directory) as checkpoints:
    save_step(checkpoints, 1)
    checkpoints.wait()
    directory.rename(tmp_path / "elsewhere")
    directory.symlink_to("/mnt/not/mounted")
    with refuses("checkpoints: the directory of the checkpoints is gone; mount or restore it"):
      save_step(checkpoints, 2)
      checkpoints.wait()


def test_step_that_a_run_deletes_during_reading_is_not_damaged(tmp_path, monkeypatch, caplog):
  """The run saves step 2 and deletes step 1 between the listing and the reading of step 1."""
  read_manifest = orbax_steps.LocalSteps.manifest
  directory = tmp_path / "run"
  newer = tmp_path / "newer"
  save_steps(directory, [1, 2], keep_last=None)
  (directory / "2").rename(newer)

  def delete_step_and_read_manifest(self, step):
    if newer.exists():
      newer.rename(directory / "2")
      shutil.rmtree(directory / "1")
    return read_manifest(self, step)

  monkeypatch.setattr(orbax_steps.LocalSteps, "manifest", delete_step_and_read_manifest)
  assert_restores(directory, 2)
  assert not caplog.records


def test_tensors_may_be_restored_by_their_paths(tmp_path):
  save_steps(tmp_path, [3])
  template = abstract_state()["params"]
  _, nested, _ = Checkpoints(tmp_path).restore({"params": template})
  paths = {f"params/{name}": x for name, x in template.items()}
  _, by_path, _ = Checkpoints(tmp_path).restore(paths)
  assert by_path.keys() == paths.keys()
  for name, x in nested["params"].items():
    assert np.array_equal(
      np.asarray(x).view(np.uint8), np.asarray(by_path[f"params/{name}"]).view(np.uint8)
    )
  with refuses("tensor params/scale bfloat16[24] is in the checkpoint, expected no such tensor"):
    Checkpoints(tmp_path).restore({"params/embed": template["embed"]}, 3)


def test_two_leaves_of_one_path_are_refused(tmp_path):
  x = jnp.zeros(4)
  with pytest.raises(TypeError, match="two leaves of the name a/b"):
    Checkpoints(tmp_path).save(1, {"a": {"b": x}, "a/b": x}, {})
