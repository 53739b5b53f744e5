"""A lease is taken over at once only if its holder is known to have ended; locks belong to one
process."""

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest

from t5x_like.errors import TransientError
from t5x_like.files import exclusive, leases, locks
from t5x_like.files.locks import DirectoryInUse
from t5x_like.files.paths import as_path

ABSENT_PROCESS = 2**22 + 1  # larger than any process number of Linux
LEASE_SECONDS = 1.2


def make_lease(directory, seconds: float) -> leases.Lease:
  return leases.Lease(as_path(directory), "lease", "is training in it ({})", seconds)


def foreign_lease(directory, **content) -> leases.Lease:
  """Return a lease, not yet entered, with the content that a process elsewhere would write."""
  lease = make_lease(directory, LEASE_SECONDS)
  lease.content |= content
  return lease


def process_scope(**changes) -> list[str]:
  """Return the scope of the numbers of this process, with changes, as a lease records it."""
  keys = ("host", "boot", "processes", "time")
  return [changes.get(key, value) for key, value in zip(keys, leases._process_scope(), strict=True)]


POSSIBLY_ALIVE = [
  {"place": process_scope(boot="another"), "process": ABSENT_PROCESS},
  {"place": process_scope(processes="pid:[4026532999]"), "process": ABSENT_PROCESS},
  {"place": process_scope(host="another"), "process": ABSENT_PROCESS},
  {"place": process_scope(time="time:[1]"), "process": os.getpid(), "started": 1},
  {"place": None, "process": ABSENT_PROCESS},
  {"place": process_scope(), "process": os.getpid()},
  {"place": process_scope(), "process": "1"},
  {"place": process_scope(), "process": -1},
]


@pytest.mark.parametrize(
  "content", POSSIBLY_ALIVE[:5], ids=["boot", "process namespace", "host", "time namespace", "none"]
)
def test_live_holder_on_another_host_or_in_another_namespace_keeps_its_lease(content, tmp_path):
  with foreign_lease(tmp_path, **content) as lease:
    with pytest.raises(DirectoryInUse, match=r"another process is training in it \(process"):
      make_lease(tmp_path, 2).__enter__()
    lease.check()


@pytest.mark.parametrize("content", POSSIBLY_ALIVE, ids=range(len(POSSIBLY_ALIVE)))
def test_lease_of_a_possibly_live_holder_is_watched_before_it_is_taken_over(content, tmp_path):
  dead = foreign_lease(tmp_path, **content)
  (tmp_path / "lease").write_bytes(dead._encode())
  began = time.monotonic()
  with make_lease(tmp_path, LEASE_SECONDS):
    assert time.monotonic() - began >= LEASE_SECONDS


def test_lease_is_watched_first_where_the_system_lists_no_processes(tmp_path, monkeypatch):
  monkeypatch.setattr(leases, "_process_scope", lambda: None)
  (tmp_path / "lease").write_bytes(foreign_lease(tmp_path, process=ABSENT_PROCESS)._encode())
  began = time.monotonic()
  with make_lease(tmp_path, LEASE_SECONDS):
    assert time.monotonic() - began >= LEASE_SECONDS


@pytest.mark.parametrize(
  "content",
  [{"process": ABSENT_PROCESS}, {"process": os.getpid(), "started": 1}],
  ids=["gone", "reused"],
)
def test_lease_of_an_ended_process_is_taken_over_at_once(content, tmp_path):
  (tmp_path / "lease").write_bytes(foreign_lease(tmp_path, **content)._encode())
  began = time.monotonic()
  with make_lease(tmp_path, 30):
    assert time.monotonic() - began < 4


def test_lease_that_can_be_neither_made_nor_read_is_an_error(tmp_path, monkeypatch):
  (tmp_path / "lease").symlink_to(tmp_path / "nowhere")
  monkeypatch.setattr("time.sleep", lambda seconds: None)
  with pytest.raises(TransientError, match="lease: exists when it is to be"):
    make_lease(tmp_path, 30).__enter__()


def try_lock(path):
  """Return the lock, or None if another process holds it."""
  try:
    return locks.Lock(path)
  except BlockingIOError:
    return None


def test_lock_ends_with_the_process_that_took_it(tmp_path):
  """A child that the holder forked outlives it, but does not keep the lock."""
  code = (
    "import os, sys, time; from t5x_like.files.locks import Lock; lock = Lock(sys.argv[1]);"
    "child = os.fork() or (time.sleep(60), os._exit(0)); print(child, flush=True); sys.stdin.read()"
  )
  command = [sys.executable, "-c", code, tmp_path / "lock"]
  with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
    child = int(holder.stdout.readline())
    try:
      with pytest.raises(BlockingIOError):
        locks.Lock(tmp_path / "lock")
      holder.kill()
      holder.wait()
      os.kill(child, 0)
      deadline = time.monotonic() + 30  # the child may not have run yet
      while (lock := try_lock(tmp_path / "lock")) is None and time.monotonic() < deadline:
        time.sleep(0.05)
      lock.close()
    finally:
      os.kill(child, signal.SIGKILL)


def test_shared_locks_exclude_only_exclusive_ones(tmp_path):
  with locks.Lock(tmp_path / "a", shared=True), locks.Lock(tmp_path / "a", shared=True):
    with pytest.raises(BlockingIOError):
      locks.Lock(tmp_path / "a")
  locks.Lock(tmp_path / "a").close()
  locks.Lock(tmp_path).close()  # a directory


def hold_directory(directory):
  """Return the lock of a directory, or the lease in its place, as a context manager."""
  return contextlib.closing(
    exclusive.hold_directory(as_path(directory), "lock", "is writing ({}); wait", "lease")
  )


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:30 / {} rw,relatime shared:2 - {} server:/export {}
"""


@pytest.mark.parametrize(
  "kind, options, shared",
  [
    ("nfs", "rw,vers=3,nolock,local_lock=none", False),
    ("nfs4", "rw,vers=4.2,local_lock=none", True),
    ("nfs", "rw,local_lock=all", False),
    ("nfs", "rw,local_lock=posix", True),
    ("lustre", "rw,localflock", False),
    ("lustre", "rw,flock", True),
    ("fuse.sshfs", "rw", False),
    ("ext4", "rw", True),
  ],
)
def test_lease_replaces_locks_that_other_hosts_do_not_see(
  kind, options, shared, tmp_path, monkeypatch
):
  directory = tmp_path / "a disk" / "run"
  directory.mkdir(parents=True)
  mount = str(directory.parent).replace(" ", "\\040")
  (tmp_path / "mounts").write_text(MOUNTS.format(mount, kind, options))
  monkeypatch.setattr(locks, "_MOUNTS", tmp_path / "mounts")
  with hold_directory(directory) as lock:
    assert isinstance(lock, locks.Lock) == shared
  with hold_directory(tmp_path) as lock:
    assert isinstance(lock, locks.Lock)


def test_lease_replaces_locks_where_the_file_system_has_none(tmp_path, monkeypatch):
  def flock(file, how):
    raise OSError(errno.ENOLCK, "No locks available")

  with hold_directory(tmp_path) as lock:
    assert isinstance(lock, locks.Lock)
    with pytest.raises(DirectoryInUse, match="another process is writing; wait"):
      hold_directory(tmp_path)
  monkeypatch.setattr(fcntl, "flock", flock)
  with hold_directory(tmp_path) as lock:
    assert isinstance(lock, leases.Lease)
    assert (tmp_path / "lease").exists()
  assert not (tmp_path / "lease").exists()
