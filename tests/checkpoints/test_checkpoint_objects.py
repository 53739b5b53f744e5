"""Checkpoints on an object store are exact although it fails, lags and loses connections."""

import json
import threading
import time
import uuid

import pytest

from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import DamageError, TransientError, UserError
from t5x_like.files import clients, remote
from t5x_like.files.leases import Lease
from t5x_like.files.paths import as_path
from tests import object_server
from tests.checkpoints.test_checkpoint import abstract_of, as_bytes, make_state, mesh_of

pytestmark = pytest.mark.runs

pytest.importorskip("gcsfs")


@pytest.fixture
def server(tmp_path, monkeypatch):
  server = object_server.Server(tmp_path / "bucket")
  server.root.mkdir()
  with server.running():
    remote.reset()  # of another test's server
    quick = {"max_retries": 3, "initial_delay": "1ms", "max_delay": "80ms"}
    monkeypatch.setattr(clients, "_tensorstore_context", lambda: {"gcs_request_retries": quick})
    for name, value in (
      object_server.environment(server) | {"T5X_LIKE_RETRY_SECONDS": "20"}
    ).items():
      monkeypatch.setenv(name, value)
    yield server


URL = "gs://bucket/run/checkpoints"


def save(steps, mesh, url=URL, **options):
  with Checkpoints(url, **options) as checkpoints:
    for step in steps:
      checkpoints.save(step, make_state(step, mesh), {"step": step}, finite=False)


def restore_state(mesh, step=None, url=URL):
  return Checkpoints(url).restore(abstract_of(make_state(1, mesh), mesh), step)


@pytest.mark.parametrize("trouble", ["none", "unavailable", "throttled", "broken", "lagging"])
def test_restores_exactly_onto_other_meshes_whatever_the_store_does(server, trouble):
  mesh = mesh_of(2, 4)
  if trouble in ("unavailable", "throttled", "broken"):
    setattr(server, trouble, 0.15)
  save([1, 2], mesh)
  if trouble == "lagging":
    server.stale = server.names()
  save([3, 4], mesh)
  for shape in ((2, 4), (8, 1), (1, 8)):
    step, state, metadata = restore_state(mesh_of(*shape))
    assert step == (4 if server.stale is None else 2)
    server.stale = None
    assert metadata == {"step": step}
    assert as_bytes(state) == as_bytes(make_state(step, mesh))


def test_an_unfinished_save_does_not_count_and_is_removed_by_the_next(server, monkeypatch):
  mesh = mesh_of(8, 1)
  save([1], mesh)
  monkeypatch.setenv("T5X_LIKE_RETRY_SECONDS", "0.1")
  with pytest.raises(TransientError, match="gs://bucket/run/checkpoints/2"):
    with Checkpoints(URL) as checkpoints:
      server.writes_left = 1
      checkpoints.save(2, make_state(2, mesh), {"step": 2}, finite=False)
  server.writes_left = None
  assert Checkpoints(URL).steps() == [1]
  assert len(list((server.root / "run/checkpoints").iterdir())) == 2
  assert as_bytes(restore_state(mesh)[1]) == as_bytes(make_state(1, mesh))
  save([3], mesh)
  assert Checkpoints(URL).steps() == [1, 3]
  (unfinished,) = server.root.glob("run/checkpoints/2-*")
  assert [file.name for file in unfinished.iterdir()] == ["aside"]
  save([4], mesh)
  assert not unfinished.exists()


class Workdir:
  """Stand in for a workdir that several runs take in turn."""

  def __init__(self):
    self.holder = 0

  def take(self):
    """Take the workdir; return the check of its new holder."""
    self.holder += 1
    lease = self.holder

    def check():
      if self.holder != lease:
        raise TransientError("another process has taken it over")

    return check


def pause_and_take_over(first_pauses_at: int):
  """A run that is paused in its first save, at a call of `check`; a second run that takes over,
  saves step 3 meanwhile, and commits it once the first has ended. Returns the checkpoints of the
  second."""
  mesh = mesh_of(8, 1)
  url = f"memory://{uuid.uuid4().hex}/checkpoints"
  workdir = Workdir()
  save([1], mesh, url)
  paused = threading.Event()
  go = threading.Event()
  write = threading.Event()
  commit = threading.Event()
  calls = []
  check_first = workdir.take()

  def check():
    check_first()
    calls.append(None)
    if len(calls) == first_pauses_at:
      paused.set()
      go.wait()

  first = Checkpoints(url, check=check)
  first.save(2, make_state(2, mesh), {"step": 2}, finite=False)
  assert paused.wait(30)
  check_second = workdir.take()
  waits = []

  def check_slowly():
    check_second()
    waits.append(None)
    if len(waits) == 2:  # its tensors are written, its manifest is not
      write.set()
      commit.wait()

  second = Checkpoints(url, check=check_slowly)
  second.save(3, make_state(3, mesh), {"step": 3}, finite=False)
  assert write.wait(30)
  go.set() if first_pauses_at == 1 else None
  return first, second, go, commit, mesh, url


@pytest.mark.parametrize("pauses_at", [1, 2], ids=["before its check of the manifest", "after it"])
def test_a_run_that_lost_its_workdir_in_a_save_neither_commits_nor_deletes(pauses_at):
  first, second, go, commit, mesh, url = pause_and_take_over(pauses_at)
  if pauses_at == 2:  # the first wakes only once the second has committed and cleaned
    commit.set()
    second.wait()
  go.set()
  with pytest.raises(TransientError, match="another process has taken it over"):
    first.wait()
  commit.set()
  second.close()
  assert Checkpoints(url).steps() == [1, 3]
  step, state, _ = restore_state(mesh, url=url)
  assert step == 3
  assert as_bytes(state) == as_bytes(make_state(3, mesh))


@pytest.mark.parametrize("name", ["2-00000000-1", "2-ffffffff-1"])
def test_an_intact_attempt_at_a_step_is_restored_beside_a_damaged_one(name, caplog):
  mesh = mesh_of(8, 1)
  url = f"memory://{uuid.uuid4().hex}/checkpoints"
  save([1, 2], mesh, url)
  (intact,) = [directory for directory in as_path(url).iterdir() if directory.name.startswith("2-")]
  (as_path(url) / name / "manifest.json").write_bytes((intact / "manifest.json").read())
  step, state, _ = restore_state(mesh, url=url)
  assert step == 2
  assert as_bytes(state) == as_bytes(make_state(2, mesh))
  assert ("a damaged attempt to save it is passed over" in caplog.text) == (name < intact.name)
  with Checkpoints(url) as checkpoints:
    assert checkpoints.restore(abstract_of(make_state(1, mesh), mesh))[0] == 2
    checkpoints.save(2, make_state(2, mesh), {"step": 2}, finite=False)
    checkpoints.save(3, make_state(3, mesh), {"step": 3}, finite=False)
  assert restore_state(mesh, url=url)[0] == 3


def test_saves_outlast_a_store_that_is_down_for_a_while(server):
  mesh = mesh_of(8, 1)
  server.unavailable = 1.0
  threading.Timer(4, lambda: setattr(server, "unavailable", 0.0)).start()
  save([1], mesh)
  assert restore_state(mesh)[0] == 1


def test_damage_is_found_and_set_aside_and_few_steps_are_kept(server, caplog):
  mesh = mesh_of(8, 1)
  save(range(1, 8), mesh, every=2, keep_last=2)
  assert Checkpoints(URL).steps() == [4, 6, 7]
  with Checkpoints(URL) as checkpoints:
    checkpoints.set_aside(6, "set_aside")
    assert checkpoints.steps() == [4, 6]
  (blob,) = server.root.glob("run/checkpoints/6-*/tensors-00000.bin")
  content = bytearray(blob.read_bytes())
  content[len(content) // 2] ^= 1
  blob.write_bytes(content)
  with Checkpoints(URL) as checkpoints:
    assert checkpoints.restore(abstract_of(make_state(1, mesh), mesh))[0] == 4
    assert ("step 6 is damaged") in caplog.text
    checkpoints.save(6, make_state(6, mesh), {"step": 6}, finite=False)
  assert restore_state(mesh)[0] == 6
  assert len(list(server.root.glob("run/checkpoints/6-*"))) == 2
  for blob in server.root.glob("run/checkpoints/*/tensors-00000.bin"):
    blob.write_bytes(blob.read_bytes()[:-9])
  with pytest.raises(DamageError, match="every checkpoint is damaged"):
    restore_state(mesh)


@pytest.mark.parametrize("file", ["manifest.json", "tensors-00000.json", "tensors-00000.bin"])
def test_a_step_with_a_short_object_is_passed_over(file, server, caplog, monkeypatch):
  """The object is stored short, or is answered short."""
  monkeypatch.setattr("t5x_like.checkpoints.manager._SECOND_LOOK_SECONDS", 0)
  mesh = mesh_of(8, 1)
  save([1, 2], mesh)
  (path,) = server.root.glob(f"run/checkpoints/2-*/{file}")
  content = path.read_bytes()
  for damage in (
    "empty",
    "cut short",
    "range",
    "no object",
    content[:0],
    content[:40],
    content[:-1],
    None,
  ):
    server.fault = lambda at, name, damage=damage: (
      damage if "/2-" in name and name.endswith(file) else None
    )
    if damage is None:
      path.unlink()
    elif isinstance(damage, bytes):
      server.fault = lambda at, name: None
      path.write_bytes(damage)
    caplog.clear()
    step, state, _ = restore_state(mesh)
    assert step == 1, damage
    assert as_bytes(state) == as_bytes(make_state(1, mesh)), damage
    # a step without a manifest is none
    uncommitted = file == "manifest.json" and damage in (None, "no object")
    assert ("step 2 is damaged and is skipped" in caplog.text) != uncommitted, damage
    with pytest.raises(
      UserError if uncommitted else DamageError, match="gs://bucket/run/checkpoints"
    ):
      restore_state(mesh, step=2)


@pytest.mark.parametrize(
  "answer, message", [("forbidden", "permission denied"), ("no bucket", "bucket gs://bucket does")]
)
def test_a_refusal_is_never_damage(answer, message, server):
  mesh = mesh_of(8, 1)
  save([1, 2], mesh)
  for operations in (("range",), ("read", "range"), ("list",), None)[2 * (answer == "no bucket") :]:
    server.fault = lambda at, _, asked=operations: answer if asked is None or at in asked else None
    with pytest.raises(UserError, match=message):
      restore_state(mesh)
  with pytest.raises(UserError, match=message), Checkpoints(URL) as checkpoints:
    server.fault = lambda at, _: answer if at in ("write", "create") else None
    checkpoints.save(3, make_state(3, mesh), {"step": 3}, finite=False)
  server.fault = lambda at, _: None
  assert restore_state(mesh)[0] == 2


def make_lease(url, seconds: float) -> Lease:
  return Lease(as_path(url), "lease", "is training in it ({})", seconds)


@pytest.mark.parametrize(
  "answer, kind, message",
  [
    ("forbidden", UserError, "permission denied"),
    ("no bucket", UserError, "bucket gs://bucket does not exist"),
    (
      "no object",
      TransientError,
      "gs://bucket/run/lease: is gone, removed by another process or by hand",
    ),
    (None, TransientError, "another process has taken it over"),
  ],
)
def test_a_lost_lease_states_its_reason(answer, kind, message, server):
  with make_lease("gs://bucket/run", seconds=60) as lease:
    if answer is None:
      as_path("gs://bucket/run/lease").write_bytes(b'{"holder": "another"}')
    server.fault = lambda at, name: answer if name == "run/lease" or answer == "no bucket" else None
    with pytest.raises(kind, match=message):
      lease.check()
  server.fault = lambda at, _: None


def test_renewals_of_a_lease_resume_after_a_refusal(server, capfd):
  with make_lease("gs://bucket/run", seconds=0.6) as lease:
    server.fault = lambda at, _: "forbidden"
    time.sleep(0.5)
    server.fault = lambda at, _: None
    before = as_path("gs://bucket/run/lease").read()
    time.sleep(0.5)
    assert as_path("gs://bucket/run/lease").read() != before
    lease.check()
  assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("url", ["gs://bucket/run", "memory://lease-{}", "{}"])
def test_a_lease_is_held_by_one_and_passes_on_when_it_dies(url, server, tmp_path):
  url = url.format(tmp_path)
  with make_lease(url, seconds=2.4) as lease:
    with pytest.raises(Exception, match="another process is training in it"):
      with make_lease(url, seconds=2.4):
        pass
    time.sleep(3)
    lease.check()
  with make_lease(url, seconds=2.4) as lost:
    lost.abandon()  # as if its host had lost power
    began = time.monotonic()
    with make_lease(url, seconds=2.4) as lease:
      assert time.monotonic() - began >= 2
      lease.check()
      with pytest.raises(TransientError, match="another process has taken"):
        lost.check()
  assert (as_path(url) / "lease").read() is None


def test_a_lease_of_a_dead_process_on_this_host_is_taken_at_once(tmp_path):
  lease = make_lease(tmp_path, seconds=60)
  (tmp_path / "lease").write_text(json.dumps(lease.content | {"holder": "x", "process": 2**22 + 1}))
  began = time.monotonic()
  with lease:
    assert time.monotonic() - began < 50


def test_a_large_shard_is_written_in_parts(server, monkeypatch):
  mesh = mesh_of(2, 4)
  save([1], mesh)
  monkeypatch.setattr("t5x_like.checkpoints.object_steps._PART_BYTES", 300)
  save([2], mesh)
  files = sorted((server.root / "run/checkpoints").glob("2-*/tensors-*.bin"))
  assert len(files) > 3
  assert max(file.stat().st_size for file in files) <= 300
  for step in (1, 2):
    restored_step, state, _ = restore_state(mesh_of(8, 1), step)
    assert restored_step == step
    assert as_bytes(state) == as_bytes(make_state(step, mesh))
