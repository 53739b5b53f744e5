"""Checkpoints on an object store are exact even if it fails, lags and loses connections."""

import threading
import time
import uuid

import pytest

from refusals import refuses
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import DamageError, TransientError, UserError
from t5x_like.files import clients
from t5x_like.files.leases import Lease
from t5x_like.files.paths import as_path
from tests import object_server
from tests.checkpoints.states import (
  abstract_state,
  assert_restores,
  make_mesh,
  save_step,
  save_steps,
)

pytestmark = pytest.mark.runs

pytest.importorskip("gcsfs")


@pytest.fixture
def server(tmp_path, monkeypatch):
  with object_server.serve(tmp_path / "bucket", T5X_LIKE_RETRY_SECONDS="20") as server:
    quick = {"max_retries": 3, "initial_delay": "1ms", "max_delay": "80ms"}
    monkeypatch.setattr(clients, "_tensorstore_context", lambda: {"gcs_request_retries": quick})
    yield server


URL = "gs://bucket/run/checkpoints"
EVERY_OPERATION = ("read", "range", "list", "stat", "write", "create", "delete", "bucket")


def attempt_paths(server, step: int, file: str = "") -> list:
  """Return the directories of all attempts to save a step, or the file of one name in each."""
  return list(server.root.glob(f"run/checkpoints/{step}-*/{file}"))


@pytest.mark.parametrize("fault", [None, "unavailable", "throttled", "broken"])
def test_restores_exactly_onto_other_meshes_despite_store_faults(server, fault):
  mesh = make_mesh(2, 4)
  if fault:
    setattr(server, fault, 0.15)
  save_steps(URL, [1, 2], mesh)
  for shape in ((2, 4), (8, 1), (1, 8)):
    assert_restores(URL, 2, make_mesh(*shape))


def test_stale_listing_shows_the_earlier_steps(server):
  save_steps(URL, [1, 2])
  server.stale = server.names()
  save_steps(URL, [3])
  assert_restores(URL, 2)
  server.stale = None
  assert_restores(URL, 3)


def test_unfinished_save_does_not_count_and_later_saves_remove_it(server, monkeypatch):
  save_steps(URL, [1])
  monkeypatch.setenv("T5X_LIKE_RETRY_SECONDS", "0.1")
  with refuses("gs://bucket/run/checkpoints/2", error=TransientError):
    with Checkpoints(URL) as checkpoints:
      server.writes_left = 1
      save_step(checkpoints, 2)
  server.writes_left = None
  assert Checkpoints(URL).steps() == [1]
  (unfinished,) = attempt_paths(server, 2)
  assert_restores(URL, 1)
  save_steps(URL, [3])
  assert Checkpoints(URL).steps() == [1, 3]
  assert [file.name for file in unfinished.iterdir()] == ["aside"]
  save_steps(URL, [4])
  assert not unfinished.exists()


class Workdir:
  """A stand-in for a workdir that several runs take in turn."""

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


class PausedCheck:
  """A wrapper of a holder's check of its workdir, which blocks in one call until it is released."""

  def __init__(self, check, at_call: int):
    self.reached = threading.Event()
    self.released = threading.Event()
    self._check = check
    self._calls_left = at_call

  def __call__(self):
    self._check()
    self._calls_left -= 1
    if self._calls_left == 0:
      self.reached.set()
      self.released.wait()


@pytest.mark.parametrize("pauses_at", [1, 2], ids=["before its check of the manifest", "after it"])
def test_a_run_that_lost_its_workdir_while_saving_neither_commits_nor_deletes(pauses_at):
  """A second run takes over, and saves step 3, while the first is paused in its save of step 2."""
  url = f"memory://{uuid.uuid4().hex}/checkpoints"
  workdir = Workdir()
  save_steps(url, [1])
  first_pause = PausedCheck(workdir.take(), at_call=pauses_at)
  first = Checkpoints(url, check=first_pause)
  save_step(first, 2)
  assert first_pause.reached.wait(30)
  # The second call comes after the tensors are written and before the manifest is.
  second_pause = PausedCheck(workdir.take(), at_call=2)
  second = Checkpoints(url, check=second_pause)
  save_step(second, 3)
  assert second_pause.reached.wait(30)
  if pauses_at == 2:  # the first wakes only once the second has committed and cleaned
    second_pause.released.set()
    second.wait()
  first_pause.released.set()
  with refuses("another process has taken it over", error=TransientError):
    first.wait()
  second_pause.released.set()
  second.close()
  assert Checkpoints(url).steps() == [1, 3]
  assert_restores(url, 3)


@pytest.mark.parametrize("name", ["2-00000000-1", "2-ffffffff-1"])
def test_intact_attempt_is_restored_although_another_is_damaged(name, caplog):
  url = f"memory://{uuid.uuid4().hex}/checkpoints"
  save_steps(url, [1, 2])
  (intact,) = [folder for folder in as_path(url).iterdir() if folder.name.startswith("2-")]
  (as_path(url) / name / "manifest.json").write_bytes((intact / "manifest.json").read())
  assert_restores(url, 2)
  assert ("a damaged attempt to save it is skipped" in caplog.text) == (name < intact.name)
  with Checkpoints(url) as checkpoints:
    assert checkpoints.restore(abstract_state())[0] == 2
    save_step(checkpoints, 2)
    save_step(checkpoints, 3)
  assert_restores(url, 3)


def test_saves_survive_a_short_outage_of_the_store(server):
  server.unavailable = 1.0
  threading.Timer(4, lambda: setattr(server, "unavailable", 0.0)).start()
  save_steps(URL, [1])
  assert_restores(URL, 1)


def test_damaged_steps_are_detected_and_set_aside_and_old_ones_deleted(server, caplog):
  save_steps(URL, range(1, 8), every=2, keep_last=2)
  assert Checkpoints(URL).steps() == [4, 6, 7]
  with Checkpoints(URL) as checkpoints:
    checkpoints.set_aside(6, "set_aside")
    assert checkpoints.steps() == [4, 6]
  (blob,) = attempt_paths(server, 6, "tensors-00000.bin")
  content = bytearray(blob.read_bytes())
  content[len(content) // 2] ^= 1
  blob.write_bytes(content)
  with Checkpoints(URL) as checkpoints:
    assert checkpoints.restore(abstract_state())[0] == 4
    assert "step 6 is damaged" in caplog.text
    save_step(checkpoints, 6)
  assert_restores(URL, 6)
  assert len(attempt_paths(server, 6)) == 2
  for blob in server.root.glob("run/checkpoints/*/tensors-00000.bin"):
    blob.write_bytes(blob.read_bytes()[:-9])
  with refuses("every checkpoint is damaged", error=DamageError):
    Checkpoints(URL).restore(abstract_state())


def assert_step_2_is_skipped(caplog, error: type[Exception], case) -> None:
  """Assert that step 1 is restored in place of step 2, and that requesting step 2 is refused."""
  caplog.clear()
  assert_restores(URL, 1)
  assert ("step 2 is damaged and is skipped" in caplog.text) == (error is DamageError), case
  with refuses(URL, error=error):
    Checkpoints(URL).restore(abstract_state(), 2)


@pytest.mark.parametrize("file", ["manifest.json", "tensors-00000.json", "tensors-00000.bin"])
def test_step_with_a_truncated_object_is_skipped(file, server, caplog, monkeypatch):
  """Either the stored object or the answer is truncated; without a manifest no step exists."""
  monkeypatch.setattr("t5x_like.checkpoints.manager._SECOND_READ_DELAY_SECONDS", 0)
  save_steps(URL, [1, 2])
  error_of_absence = UserError if file == "manifest.json" else DamageError
  answers = dict.fromkeys(("empty", "cut short", "range"), DamageError)
  answers["no object"] = error_of_absence
  for answer, error in answers.items():
    server.fault = lambda at, name, answer=answer: (
      answer if "/2-" in name and name.endswith(file) else None
    )
    assert_step_2_is_skipped(caplog, error, answer)
  server.fault = lambda at, name: None
  (path,) = attempt_paths(server, 2, file)
  content = path.read_bytes()
  for stored in (b"", content[:40], content[:-1]):
    path.write_bytes(stored)
    assert_step_2_is_skipped(caplog, DamageError, stored)
  path.unlink()
  assert_step_2_is_skipped(caplog, error_of_absence, "no file")


@pytest.mark.parametrize(
  "answer, operations, message",
  [
    ("forbidden", ("range",), "permission denied"),
    ("forbidden", ("read", "range"), "permission denied"),
    ("forbidden", ("list",), "permission denied"),
    ("forbidden", EVERY_OPERATION, "permission denied"),
    ("no bucket", ("list",), "bucket gs://bucket does"),
    ("no bucket", EVERY_OPERATION, "bucket gs://bucket does"),
  ],
)
def test_refusals_of_the_store_are_not_taken_for_damage(answer, operations, message, server):
  save_steps(URL, [1, 2])
  server.fault = lambda at, _: answer if at in operations else None
  with refuses(message):
    Checkpoints(URL).restore(abstract_state())
  server.fault = lambda at, _: answer if at in ("write", "create") else None
  with refuses(message), Checkpoints(URL) as checkpoints:
    save_step(checkpoints, 3)
  server.fault = lambda at, _: None
  assert_restores(URL, 2)


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
def test_error_of_a_lost_lease_states_the_reason(answer, kind, message, server):
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
def test_lease_has_one_holder_and_passes_on_when_the_holder_dies(url, server, tmp_path):
  url = url.format(tmp_path)
  with make_lease(url, seconds=2.4) as lease:
    with pytest.raises(Exception, match="another process is training in it"):
      with make_lease(url, seconds=2.4):
        pass
    time.sleep(3)
    lease.check()
  with make_lease(url, seconds=2.4) as lost:
    lost.abandon()  # stop renewing, as a host does that loses power
    began = time.monotonic()
    with make_lease(url, seconds=2.4) as lease:
      assert time.monotonic() - began >= 2
      lease.check()
      with pytest.raises(TransientError, match="another process has taken"):
        lost.check()
  assert (as_path(url) / "lease").read() is None


def test_large_shard_is_written_in_parts(server, monkeypatch):
  save_steps(URL, [1], make_mesh(2, 4))
  monkeypatch.setattr("t5x_like.checkpoints.object_steps._PART_BYTES", 300)
  save_steps(URL, [2], make_mesh(2, 4))
  files = attempt_paths(server, 2, "tensors-*.bin")
  assert len(files) > 3
  assert max(file.stat().st_size for file in files) <= 300
  for step in (1, 2):
    assert_restores(URL, step, requested_step=step)
