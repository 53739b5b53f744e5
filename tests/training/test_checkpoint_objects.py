"""Checkpoints on an object store are as exact as local ones, through a store that fails, lags and loses connections."""

import asyncio
import json
import os
import threading
import time
import types

import jax
import numpy as np
import pytest

from t5x_like.errors import DamageError, TransientError
from t5x_like.lease import Lease
from t5x_like.storage import Storage
from t5x_like.training.checkpoint import Checkpoints
from tests import object_server
from tests.training.test_checkpoint import abstract_of, as_bytes, make_state, mesh_of

os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # asks Google what kind a bucket is
pytest.importorskip("gcsfs")


@pytest.fixture
def server(tmp_path, monkeypatch):
  server = object_server.Server(tmp_path / "bucket")
  server.root.mkdir()
  with server.running():
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    monkeypatch.setenv("T5X_LIKE_RETRY_SECONDS", "20")
    quick = types.SimpleNamespace(sleep=lambda seconds: asyncio.sleep(seconds / 100))
    monkeypatch.setattr("gcsfs.retry.asyncio", quick)  # its waits between attempts
    yield server


URL = "gs://bucket/run/checkpoints"


def save(steps, mesh, url=URL, **options):
  with Checkpoints(url, **options) as checkpoints:
    for step in steps:
      checkpoints.save(step, make_state(step, mesh), {"step": step}, finite=False)


def restored(mesh, step=None, url=URL):
  return Checkpoints(url).restore(abstract_of(make_state(1, mesh), mesh), step)


@pytest.mark.parametrize("trouble", ["none", "unavailable", "throttled", "broken", "lagging"])
def test_exact_onto_other_meshes_whatever_the_store_does(server, trouble):
  mesh = mesh_of(2, 4)
  if trouble in ("unavailable", "throttled", "broken"):
    setattr(server, trouble, 0.15)
  save([1, 2], mesh)
  if trouble == "lagging":
    server.stale = server.names()
  save([3, 4], mesh)
  for shape in ((2, 4), (8, 1), (1, 8)):
    step, state, metadata = restored(mesh_of(*shape))
    assert step == (4 if server.stale is None else 2)
    server.stale = None
    assert metadata == {"step": step} and as_bytes(state) == as_bytes(make_state(step, mesh))


def test_a_save_that_is_cut_short_is_none_and_is_removed_by_the_next(server, monkeypatch):
  mesh = mesh_of(8, 1)
  save([1], mesh)
  monkeypatch.setenv("T5X_LIKE_RETRY_SECONDS", "0.1")
  with pytest.raises(TransientError, match="gs://bucket/run/checkpoints/2"):
    with Checkpoints(URL) as checkpoints:
      server.writes_left = 1
      checkpoints.save(2, make_state(2, mesh), {"step": 2}, finite=False)
  server.writes_left = None
  assert Checkpoints(URL).steps() == [1] and len(list((server.root / "run/checkpoints").iterdir())) == 2
  assert as_bytes(restored(mesh)[1]) == as_bytes(make_state(1, mesh))
  save([3], mesh)
  assert Checkpoints(URL).steps() == [1, 3] and len(list((server.root / "run/checkpoints").iterdir())) == 2


def test_it_outlasts_a_store_that_is_down_for_a_while(server):
  mesh = mesh_of(8, 1)
  server.unavailable = 1.0
  threading.Timer(4, lambda: setattr(server, "unavailable", 0.0)).start()
  save([1], mesh)
  assert restored(mesh)[0] == 1


def test_keeps_sets_aside_and_finds_damage(server, caplog):
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
    assert checkpoints.restore(abstract_of(make_state(1, mesh), mesh))[0] == 4 and "step 6 is damaged" in caplog.text
    checkpoints.save(6, make_state(6, mesh), {"step": 6}, finite=False)
  assert restored(mesh)[0] == 6 and len(list(server.root.glob("run/checkpoints/6-*"))) == 2
  for blob in server.root.glob("run/checkpoints/*/tensors-00000.bin"):
    blob.write_bytes(blob.read_bytes()[:-9])
  with pytest.raises(DamageError, match="every checkpoint is damaged"):
    restored(mesh)


@pytest.mark.parametrize("url", ["gs://bucket/run", "memory://lease-{}", "{}"])
def test_a_lease_is_held_by_one_and_passes_on_when_it_dies(url, server, tmp_path):
  storage = Storage(url.format(tmp_path))
  with Lease(storage, seconds=2.4) as lease:
    with pytest.raises(Exception, match="another process is training in it"):
      with Lease(Storage(url.format(tmp_path)), seconds=2.4):
        pass
    time.sleep(3)
    lease.check()
  with Lease(storage, seconds=2.4) as lost:
    lost.abandon()  # as if its host had lost power
    began = time.monotonic()
    with Lease(Storage(url.format(tmp_path)), seconds=2.4) as lease:
      assert time.monotonic() - began >= 2
      lease.check()
      with pytest.raises(TransientError, match="another process has taken"):
        lost.check()
  assert storage.read("lease") is None


def test_a_lease_of_a_dead_process_on_this_host_is_taken_at_once(tmp_path):
  storage = Storage(tmp_path)
  lease = Lease(storage, seconds=60)
  storage.write("lease", json.dumps(lease.content | {"holder": "x", "process": 2**22 + 1}).encode())
  began = time.monotonic()
  with lease:
    assert time.monotonic() - began < 50


def test_storage_writes_whole_files_and_creates_once(server, tmp_path):
  for url in ("gs://bucket/other", f"memory://{tmp_path.name}", str(tmp_path / "local")):
    storage = Storage(url)
    assert storage.read("a/b") is None and storage.names() == [] and storage.names("a") == []
    storage.write("a/b", b"0123")
    storage.write("a/b", b"012345")
    assert storage.read("a/b") == b"012345" and storage.read("a/b", 2, 4) == b"23" and storage.names("a") == ["b"]
    assert storage.create("a/c", b"one") and not storage.create("a/c", b"two") and storage.read("a/c") == b"one"
    (tmp_path / "file").write_bytes(np.arange(9, dtype=np.uint8).tobytes())
    storage.upload("a/d", tmp_path / "file")
    assert storage.names("a") == ["b", "c", "d"] and len(storage.read("a/d")) == 9 and storage.names() == ["a"]
    storage.delete("a/b")
    storage.delete("a")
    storage.delete("a")
    assert storage.names("a") == [] and jax.process_count() == 1
