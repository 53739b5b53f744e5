"""A lease is taken at once only from a process that is known to be gone, never from one that gives signs of life."""

import os
import time

import pytest

from t5x_like.files import lease as leases
from t5x_like.files.lease import Held, Lease
from t5x_like.files.storage import Storage

GONE = 2**22 + 1  # more than any process number of Linux
SECONDS = 1.2


def forged(directory, **content) -> Lease:
  """A lease with another holder's content, as a process elsewhere would write it; not yet entered."""
  lease = Lease(Storage(directory), seconds=SECONDS)
  lease.content |= content
  return lease


def place(**changes) -> list[str]:
  keys = ("host", "boot", "processes", "time")
  return [changes.get(key, value) for key, value in zip(keys, leases._place(), strict=True)]


ELSEWHERE = [
  {"place": place(boot="another"), "process": GONE},
  {"place": place(processes="pid:[4026532999]"), "process": GONE},
  {"place": place(host="another"), "process": GONE},
  {"place": place(time="time:[1]"), "process": os.getpid(), "started": 1},
  {"place": None, "process": GONE},
  {"place": place(), "process": os.getpid()},
  {"place": place(), "process": "1"},
  {"place": place(), "process": -1},
]


@pytest.mark.parametrize("content", ELSEWHERE[:5], ids=["boot", "process namespace", "host", "time namespace", "none"])
def test_a_living_holder_that_cannot_be_seen_keeps_its_lease(content, tmp_path):
  with forged(tmp_path, **content) as held:
    with pytest.raises(Held, match=r"another process is training in it \(process"), Lease(Storage(tmp_path), seconds=2):
      pass
    held.check()


@pytest.mark.parametrize("content", ELSEWHERE, ids=range(len(ELSEWHERE)))
def test_a_lease_of_who_may_live_is_watched_before_it_is_taken(content, tmp_path):
  dead = forged(tmp_path, **content)
  Storage(tmp_path).write("lease", dead._data())
  began = time.monotonic()
  with Lease(Storage(tmp_path), seconds=SECONDS):
    assert time.monotonic() - began >= SECONDS


def test_no_lease_is_taken_at_once_where_the_system_does_not_say_what_runs(tmp_path, monkeypatch):
  monkeypatch.setattr(leases, "_place", lambda: None)
  Storage(tmp_path).write("lease", forged(tmp_path, process=GONE)._data())
  began = time.monotonic()
  with Lease(Storage(tmp_path), seconds=SECONDS):
    assert time.monotonic() - began >= SECONDS


@pytest.mark.parametrize("content", [{"process": GONE}, {"process": os.getpid(), "started": 1}], ids=["gone", "reused"])
def test_a_lease_of_a_process_that_is_gone_is_taken_at_once(content, tmp_path):
  Storage(tmp_path).write("lease", forged(tmp_path, **content)._data())
  began = time.monotonic()
  with Lease(Storage(tmp_path), seconds=30):
    assert time.monotonic() - began < 4
