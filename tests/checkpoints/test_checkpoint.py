"""Checkpoints are exact, survive kills and full disks, and never pass damage off as weights."""

import contextlib
import errno
import json
import logging
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from t5x_like.checkpoints import manager, orbax_steps
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.checkpoints.tensors import fingerprints
from t5x_like.errors import DamageError, TransientError, UserError

REPO = pathlib.Path(__file__).resolve().parents[2]


def mesh_of(*shape):
  return jax.make_mesh(shape, ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)


def shardings_of(mesh):
  return {
    "params": {
      "embed": NamedSharding(mesh, P("fsdp", "tensor")),
      "scale": NamedSharding(mesh, P()),
    },
    "opt": {
      "moment": NamedSharding(mesh, P(None, "fsdp")),
      "count": NamedSharding(mesh, P()),
      "empty": {},
    },
    "step": NamedSharding(mesh, P()),
    "key": NamedSharding(mesh, P()),
  }


def make_state(seed, mesh):
  random = np.random.default_rng(seed)
  # every bit pattern: NaNs, infinities, subnormals
  bits = random.integers(0, 2**32, (64, 32), dtype=np.uint32)
  state = {
    "params": {
      "embed": bits.view(np.float32),
      "scale": jnp.asarray(random.standard_normal(24), jnp.bfloat16),
    },
    "opt": {
      "moment": random.standard_normal((16, 64)).astype(np.float32),
      "count": np.int32(seed),
      "empty": {},
    },
    "step": np.int32(seed),
    "key": random.integers(0, 2**32, (2,), dtype=np.uint32),
  }
  return jax.tree.map(jax.device_put, state, shardings_of(mesh))


def abstract_of(state, mesh):
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings_of(mesh)
  )


def as_bytes(state):
  return jax.tree.map(lambda x: np.asarray(x).tobytes(), state)


def save_steps(directory, steps, mesh, **options):
  with Checkpoints(directory, **options) as checkpoints:
    for step in steps:
      checkpoints.save(step, make_state(step, mesh), {"config": {"seed": step}}, finite=False)


def data_files(directory, step):
  return sorted(
    (p for p in (directory / str(step) / "state").rglob("d/*")), key=lambda p: -p.stat().st_size
  )


def test_fingerprints_do_not_depend_on_sharding_and_see_every_bit_and_place():
  state = make_state(3, mesh_of(2, 4))["params"]
  for shape in ((8, 1), (1, 8), (4, 2)):
    assert fingerprints(make_state(3, mesh_of(*shape))["params"]) == fingerprints(state)
  bits = np.asarray(state["embed"]).view(np.uint32).ravel()
  seen_fingerprints = {fingerprints({"x": jnp.asarray(bits)})["x"]}
  for position, bit in [(0, 0), (0, 31), (5, 13), (bits.size - 1, 7)]:
    changed = bits.copy()
    changed[position] ^= np.uint32(1 << bit)
    seen_fingerprints.add(fingerprints({"x": jnp.asarray(changed)})["x"])
  seen_fingerprints.add(fingerprints({"x": jnp.asarray(bits[::-1].copy())})["x"])
  assert len(seen_fingerprints) == 6
  types = {
    "half": jnp.ones(3, jnp.float16),
    "flag": jnp.ones(3, bool),
    "byte": jnp.ones(3, jnp.int8),
    "empty": jnp.zeros((0, 4)),
    "scalar": jnp.float32(2),
    "key": jax.random.key(0),
  }
  assert all(len(v) == 16 for v in fingerprints(types).values())


def test_restores_exactly_onto_other_meshes(tmp_path):
  saved = make_state(7, mesh_of(2, 4))
  save_steps(tmp_path, [7], mesh_of(2, 4))
  for shape in ((2, 4), (8, 1), (1, 8)):
    step, state, metadata = Checkpoints(tmp_path).restore(abstract_of(saved, mesh_of(*shape)))
    assert (step, metadata) == (7, {"config": {"seed": 7}})
    assert as_bytes(state) == as_bytes(saved)
    assert state["params"]["embed"].sharding == NamedSharding(mesh_of(*shape), P("fsdp", "tensor"))
  assert Checkpoints(tmp_path / "nothing").restore(abstract_of(saved, mesh_of(2, 4))) is None
  assert not (tmp_path / "nothing").exists()


def test_buffers_may_be_donated_as_soon_as_save_returns(tmp_path):
  mesh = mesh_of(8, 1)
  sharding = NamedSharding(mesh, P("fsdp"))
  x = jax.device_put(np.arange(1 << 22, dtype=np.float32), sharding)
  overwrite = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
  with Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(1, {"x": x}, {})
    for _ in range(3):
      x = overwrite(x)
    jax.block_until_ready(x)
    checkpoints.wait()
    _, state, _ = checkpoints.restore(
      {"x": jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)}
    )
  assert np.array_equal(np.asarray(state["x"]), np.arange(1 << 22, dtype=np.float32))


def test_the_last_steps_and_multiples_are_kept(tmp_path):
  save_steps(tmp_path, range(1, 10), mesh_of(8, 1), keep_last=2, keep_every=4)
  assert Checkpoints(tmp_path).steps() == [4, 8, 9]
  assert Checkpoints(tmp_path).restore({}, 8) == (8, {}, {"config": {"seed": 8}})
  with pytest.raises(UserError, match=r"no checkpoint of step 5; steps here: \[4, 8, 9\]"):
    Checkpoints(tmp_path).restore({}, 5)


@pytest.mark.parametrize(
  "every, steps, kept",
  [
    (700, [1000, 2000, 3000, 3500], [2000, 3000, 3500]),
    (700, [2000, 3000, 3500, 4200], [3000, 3500, 4200]),
    (700, [3000, 3500, 4200, 4900], [3500, 4200, 4900]),
    (1500, [1000, 2000, 3000, 4500], [2000, 3000, 4500]),
    (300, [1000, 2000, 3000, 3010, 3300], [3000, 3010, 3300]),
    (1000, [1000, 2000, 3000, 3010], [1000, 2000, 3000, 3010]),
    (1000, [1000, 2000, 3000, 3010, 3020, 4000], [2000, 3000, 4000]),
    (1000, [10, 20, 30, 40], [20, 30, 40]),
  ],
)
def test_a_changed_interval_costs_none_of_the_last_steps(every, steps, kept):
  preserved = manager._Retention(every, 3, None).keeps(steps)
  assert [step for step, stays in zip(steps, preserved, strict=True) if stays] == kept


@pytest.mark.parametrize(
  "number, kind", [(errno.ENOSPC, UserError), (errno.ESTALE, TransientError)]
)
@pytest.mark.parametrize("ends_by", ["save", "wait", "close"])
def test_a_save_that_fails_in_the_background_is_named_by_its_own_step(
  ends_by, number, kind, tmp_path
):
  checkpoints = Checkpoints(tmp_path)
  failures = []

  def fail():
    if failures:
      raise failures.pop()

  store = checkpoints._store = types.SimpleNamespace(
    wait=fail,
    close=fail,
    steps=lambda: [4],
    agreed_steps=lambda: [4],
    where=lambda step: f"{tmp_path}/{step}",
    write=lambda *_: failures.append(OSError(number, os.strerror(number))),
  )
  checkpoints.save(5, {"x": jnp.ones(2)}, {})
  calls = {
    "save": lambda: checkpoints.save(6, {"x": jnp.ones(2)}, {}),
    "wait": checkpoints.wait,
    "close": checkpoints.close,
  }
  with pytest.raises(
    kind,
    match=rf"{tmp_path}/5: checkpoint could not be written.*steps saved: "
    r"\[4\]",
  ):
    calls[ends_by]()
  assert store.agreed_steps() == [4]


def test_a_run_that_has_lost_the_workdir_commits_no_step_and_sets_none_aside(tmp_path):
  lost = []

  def check():
    if lost:
      raise TransientError("another process has taken the workdir over")

  state = {"x": jnp.ones(2)}
  with Checkpoints(tmp_path, keep_last=1, check=check) as checkpoints:
    checkpoints.save(1, state, {})
    checkpoints.wait()
    lost.append(True)
    checkpoints.save(2, state, {})
    with pytest.raises(TransientError, match="another process has taken the workdir over"):
      checkpoints.wait()
    with pytest.raises(TransientError, match="another process has taken the workdir over"):
      checkpoints.set_aside(0, "set_aside")
  assert Checkpoints(tmp_path).steps() == [1]


def test_saving_a_step_again_is_refused_unless_equal(tmp_path):
  mesh = mesh_of(8, 1)
  save_steps(tmp_path, [1, 1], mesh)
  with (
    Checkpoints(tmp_path) as checkpoints,
    pytest.raises(UserError, match="step exists with other values.*embed"),
  ):
    checkpoints.save(
      1, {**make_state(1, mesh), "params": make_state(2, mesh)["params"]}, {}, finite=False
    )


def flip(directory, step):
  """Flip a bit in every 500 bytes: a single one may lie in a replaced node of the database."""
  for path in data_files(directory, step):
    content = bytearray(path.read_bytes())
    for position in range(len(content) // 2 % 500, len(content), 500):
      content[position] ^= 0x10
    path.write_bytes(content)


def truncate(directory, step):
  for path in data_files(directory, step):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def lose_data(directory, step):
  data_files(directory, step)[0].unlink()


def lose_manifest(directory, step):
  (directory / str(step) / "manifest" / "metadata").unlink()


def edit_manifest(directory, step):
  path = directory / str(step) / "manifest" / "metadata"
  path.write_text(
    path.read_text().replace('"seed": 3', '"seed": 4').replace('"seed":3', '"seed":4')
  )


def describe_nothing(directory, step):
  (directory / str(step) / "state" / "_METADATA").write_text("1")


def describe_arrays_as_numbers(directory, step):
  (path,) = (directory / str(step) / "state" / "array_metadatas").iterdir()
  path.write_text(json.dumps({"array_metadatas": [1]}))


DAMAGES = [
  flip,
  truncate,
  lose_data,
  lose_manifest,
  edit_manifest,
  describe_nothing,
  describe_arrays_as_numbers,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_skipped_loudly_moved_aside_and_never_deleted(tmp_path, caplog, damage):
  mesh = mesh_of(2, 4)
  save_steps(tmp_path, [1, 2, 3], mesh)
  damage(tmp_path, 3)
  abstract = abstract_of(make_state(1, mesh), mesh)
  with pytest.raises(DamageError, match=r"3: damaged checkpoint: .*other steps here: \[1, 2\]"):
    Checkpoints(tmp_path).restore(abstract, step=3)
  with caplog.at_level(logging.WARNING), Checkpoints(tmp_path) as checkpoints:
    step, state, metadata = checkpoints.restore(abstract)
    assert (step, metadata["config"]["seed"]) == (2, 2)
    assert as_bytes(state) == as_bytes(make_state(2, mesh))
    assert "step 3 is damaged and is skipped" in caplog.text
    assert checkpoints.steps() == [1, 2, 3], "reading alone moves nothing"
    checkpoints.save(3, make_state(3, mesh), {"config": {"seed": 3}}, finite=False)
    checkpoints.wait()
    assert checkpoints.steps() == [1, 2, 3]
    assert (tmp_path / "3.damaged" / "state").exists()
    assert as_bytes(checkpoints.restore(abstract)[1]) == as_bytes(make_state(3, mesh))


def test_never_starts_from_scratch_when_every_step_is_damaged(tmp_path):
  mesh = mesh_of(2, 4)
  save_steps(tmp_path, [1, 2], mesh)
  flip(tmp_path, 1)
  truncate(tmp_path, 2)
  with pytest.raises(DamageError, match="every checkpoint is damaged.*step 2.*step 1") as refused:
    Checkpoints(tmp_path).restore(abstract_of(make_state(1, mesh), mesh))
  assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
  "fault, raised",
  [
    (OSError(errno.EIO, "Input/output error"), TransientError),
    (ValueError("UNAVAILABLE: Error reading gs://b/d: HTTP response code: 503"), TransientError),
    (MemoryError("bad_alloc"), UserError),
    (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 64 bytes"), UserError),
    (PermissionError(errno.EACCES, "Permission denied"), UserError),
    (AttributeError("a bug"), AttributeError),
  ],
  ids=lambda x: x.__name__ if isinstance(x, type) else None,
)
def test_a_fault_is_not_damage(tmp_path, monkeypatch, fault, raised):
  mesh = mesh_of(8, 1)
  calls = []
  save_steps(tmp_path, [1, 2], mesh)

  def faulty(*args, **kwargs):
    calls.append(args)
    raise fault

  monkeypatch.setattr(orbax_steps, "read_tensors", faulty)
  monkeypatch.setenv("T5X_LIKE_RETRY_SECONDS", "0.6")
  abstract = abstract_of(make_state(1, mesh), mesh)
  with Checkpoints(tmp_path) as checkpoints:
    with pytest.raises(raised):
      checkpoints.restore(abstract)
    assert len(calls) == (2 if raised is TransientError else 1)
    monkeypatch.undo()
    assert checkpoints.restore(abstract)[0] == 2
    checkpoints.save(3, make_state(3, mesh), {}, finite=False)
  assert not list(tmp_path.glob("*.damaged"))


def test_a_step_that_reads_well_at_the_second_try_is_not_damaged(tmp_path, monkeypatch, caplog):
  mesh = mesh_of(8, 1)
  read = orbax_steps.read_tensors
  calls = []
  save_steps(tmp_path, [1], mesh)

  def late(*args, **kwargs):
    calls.append(args)
    if len(calls) == 1:
      raise FileNotFoundError("a listing that lags")
    return read(*args, **kwargs)

  monkeypatch.setattr(orbax_steps, "read_tensors", late)
  assert Checkpoints(tmp_path).restore(abstract_of(make_state(1, mesh), mesh))[0] == 1
  assert not caplog.text


def test_a_flipped_bit_names_its_tensor(tmp_path):
  sharding = NamedSharding(mesh_of(8, 1), P())
  noise = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32)
  with Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(1, {"kernel": jax.device_put(noise, sharding)}, {})
  largest = data_files(tmp_path, 1)[0]
  content = bytearray(largest.read_bytes())
  content[len(content) // 2] ^= 0x10
  largest.write_bytes(content)
  with pytest.raises(DamageError, match="kernel"):
    Checkpoints(tmp_path).restore(
      {"kernel": jax.ShapeDtypeStruct(noise.shape, noise.dtype, sharding=sharding)}, 1
    )


def test_another_tree_is_refused_by_tensor(tmp_path):
  mesh = mesh_of(8, 1)
  save_steps(tmp_path, [1], mesh)
  abstract = abstract_of(make_state(1, mesh), mesh)
  embed = abstract["params"]["embed"]

  def with_params(params):
    return {**abstract, "params": params}

  wider = jax.ShapeDtypeStruct((64, 48), embed.dtype, sharding=embed.sharding)
  halved = jax.ShapeDtypeStruct(embed.shape, jnp.bfloat16, sharding=embed.sharding)
  scale = abstract["params"]["scale"]
  for params, message in [
    (
      {"embed": wider, "scale": scale},
      r"params/embed is float32\[64, 32\], expected float32\[64, "
      r"48\]",
    ),
    (
      {"embed": halved, "scale": scale},
      r"params/embed is float32\[64, 32\], expected "
      r"bfloat16\[64, 32\]",
    ),
    (
      {"embed": embed},
      r"params/scale bfloat16\[24\] is in the checkpoint, expected no such tensor",
    ),
    (
      {"embeds": embed, "scale": scale},
      r"params/embeds is not in the checkpoint \(did you mean "
      r"'params/embed'\?\)",
    ),
  ]:
    with pytest.raises(UserError, match=message):
      Checkpoints(tmp_path).restore(with_params(params))


def test_a_refusing_disk_ends_in_one_line_and_harms_nothing(tmp_path):
  mesh = mesh_of(8, 1)
  save_steps(tmp_path, [1], mesh)
  noise = jax.device_put(np.random.default_rng(0).standard_normal((512, 1024)).astype(np.float32))
  limit = resource.getrlimit(resource.RLIMIT_FSIZE)
  checkpoints = Checkpoints(tmp_path)
  resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limit[1]))
  try:
    with pytest.raises(UserError, match="could not be written: File too large") as refused:
      checkpoints.save(2, {"noise": noise}, {})
      checkpoints.wait()
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
  assert str(tmp_path) in str(refused.value)
  assert "\n" not in str(refused.value)
  checkpoints.close()
  step, state, _ = Checkpoints(tmp_path).restore(abstract_of(make_state(1, mesh), mesh))
  assert step == 1
  assert as_bytes(state) == as_bytes(make_state(1, mesh))
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match="could not be written: Not a directory"):
    Checkpoints(tmp_path / "file" / "checkpoints").save(1, {"noise": noise}, {})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("refusal", ["No space left on device", "Read-only file system"])
def test_a_full_or_read_only_file_system_ends_in_one_line(tmp_path, refusal):
  disk = tmp_path / "disk"
  disk.mkdir()
  if subprocess.run(
    ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True
  ).returncode:
    pytest.skip("mount is not allowed here")
  try:
    mesh = mesh_of(8, 1)
    save_steps(disk / "checkpoints", [1], mesh)
    if refusal.startswith("Read-only"):
      subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    noise = jax.device_put(np.random.default_rng(0).standard_normal((512, 1024)).astype(np.float32))
    with pytest.raises(UserError, match=f"could not be written: {refusal}"):
      with Checkpoints(disk / "checkpoints") as checkpoints:
        checkpoints.save(2, {"noise": noise}, {})
    step, state, _ = Checkpoints(disk / "checkpoints").restore(
      abstract_of(make_state(1, mesh), mesh)
    )
    assert step == 1
    assert as_bytes(state) == as_bytes(make_state(1, mesh))
  finally:
    subprocess.run(["umount", "-l", disk], check=True)


SAVER = """
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


def test_killed_at_any_moment_the_newest_committed_step_is_exact(tmp_path):
  random = np.random.default_rng(0)
  env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  abstract = {"x": jax.ShapeDtypeStruct((64, 1024), np.float32, sharding=sharding)}
  newest = 0
  for _ in range(4):
    command = [sys.executable, "-c", SAVER.format(repo=str(REPO)), str(tmp_path)]
    with subprocess.Popen(
      command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
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


def test_nothing_is_printed_and_the_process_ends(tmp_path):
  script = (
    f"import sys; sys.path[:0] = [{str(REPO)!r}]\n"
    "import jax, numpy as np\nfrom t5x_like.checkpoints.manager import Checkpoints\n"
    "c = Checkpoints(sys.argv[1])\nc.save(1, {'x': jax.device_put(np.ones(3, np.float32))}, {})\n"
    "c.save(2, {'x': jax.device_put(np.ones(3, np.float32))}, {})\n"
  )
  env = {**os.environ, "JAX_PLATFORMS": "cpu"}
  process = subprocess.run(
    [sys.executable, "-c", script, str(tmp_path)],
    env=env,
    capture_output=True,
    text=True,
    timeout=600,
  )
  assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
  assert Checkpoints(tmp_path).steps() == [1, 2]
  assert (
    json.loads((tmp_path / "2" / "manifest" / "metadata").read_text())["format"]
    == "t5x_like.checkpoint.v2"
  )


def test_a_directory_that_vanishes_while_saving_ends_in_one_line(tmp_path):
  directory = tmp_path / "checkpoints"
  mesh = mesh_of(8, 1)
  with contextlib.suppress(UserError), Checkpoints(directory) as checkpoints:
    checkpoints.save(1, make_state(1, mesh), {}, finite=False)
    checkpoints.wait()
    directory.rename(tmp_path / "elsewhere")
    directory.symlink_to("/mnt/not/mounted")
    with pytest.raises(
      UserError, match="checkpoints: the directory of the checkpoints is gone; mount or restore it"
    ):
      checkpoints.save(2, make_state(2, mesh), {}, finite=False)
      checkpoints.wait()
