"""A lease on a directory where there are no locks: one process holds it, and says now and then that it is alive."""

import json
import os
import socket
import threading
import time
import uuid
from typing import Protocol

from t5x_like.errors import TransientError, UserError

_TRAINING = "is training in it ({}); wait for it or stop it, or use another --workdir"
_BEATS = 6  # signs of life in the time after which a lease may be taken


class Files(Protocol):
  """What a lease needs of a directory, such as `storage.Storage`; see there."""

  url: str

  def read(self, name: str) -> bytes | None: ...
  def write(self, name: str, data: bytes) -> None: ...
  def create(self, name: str, data: bytes) -> bool: ...
  def delete(self, name: str) -> None: ...


class Held(UserError):
  """Another process holds the lease."""


class Lease:
  """Holds a file in a directory; a context manager.

  Whoever finds a lease watches it: if it changes, its holder lives. Clocks are not compared. A lease whose holder is
  known to be gone is taken at once. Only a process of the same boot of the same kernel, in the same namespace of
  process numbers, knows that: two containers may share the name of a host, and each has a process 1.

  Args:
    storage: the directory.
    name: of the file.
    doing: what to say that another process is doing, with a place for which process it is.
    seconds: how long a lease must have stayed unchanged to be taken.

  Raises:
    Held: on entering, if another process holds the lease.
  """

  def __init__(self, storage: Files, *, name: str = "lease", doing: str = _TRAINING, seconds: float = 60):
    self._storage, self._name, self._doing, self._seconds = storage, name, doing, seconds
    self.content = {"holder": uuid.uuid4().hex, "host": socket.gethostname(), "process": os.getpid()}
    self.content |= {"place": _place(), "started": _started(os.getpid())}
    self._ended, self._beats, self._thread = threading.Event(), 0, None
    self._alive = time.monotonic()

  def __enter__(self) -> "Lease":
    while not self._storage.create(self._name, self._data()):
      self._take()
    self._alive = time.monotonic()
    self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
    self._thread.start()
    return self

  def __exit__(self, *_) -> None:
    self.abandon()
    if self._is_mine(self._storage.read(self._name)):
      self._storage.delete(self._name)

  def close(self) -> None:
    self.__exit__()

  def abandon(self) -> None:
    """Gives no more signs of life, and leaves the lease."""
    self._ended.set()
    if self._thread is not None:
      self._thread.join()

  def check(self) -> None:
    """Call it before anything is written that another run must not see.

    Raises:
      TransientError: another process has taken the lease, since this one gave no sign of life for too long.
    """
    if not self._is_mine(self._storage.read(self._name)):
      raise TransientError(f"{self._storage.url}: another process has taken it over; this one stops")

  def _take(self) -> None:
    """Removes the lease that is there if its holder is dead."""
    seen = self._storage.read(self._name)
    deadline = time.monotonic() + self._seconds
    while seen is not None and not _dead(seen) and time.monotonic() < deadline:
      time.sleep(self._seconds / _BEATS)
      now = self._storage.read(self._name)
      if now is not None and now != seen:
        raise Held(f"{self._storage.url}: another process {self._doing.format(_told(now))}")
      seen = now
    if seen is not None and self._storage.read(self._name) == seen:
      self._storage.delete(self._name)

  def _beat(self) -> None:
    while not self._ended.wait(self._seconds / _BEATS):
      try:
        if not self._is_mine(self._storage.read(self._name)):
          return  # `check` will say so
        self._beats += 1
        self._storage.write(self._name, self._data())
      except TransientError:
        continue  # the store is down, for others too

  def _data(self) -> bytes:
    return json.dumps(self.content | {"beats": self._beats}).encode()

  def _is_mine(self, data: bytes | None) -> bool:
    return data is not None and _parsed(data).get("holder") == self.content["holder"]


def _parsed(data: bytes) -> dict:
  try:
    found = json.loads(data)
  except ValueError:
    found = {}
  return found if isinstance(found, dict) else {}


def _told(data: bytes) -> str:
  found = _parsed(data)
  return f"process {found.get('process')} on {found.get('host')}"


def _dead(data: bytes) -> bool:
  """Whether the holder is known to be gone: a process that could be seen from here, and is not there."""
  found, here = _parsed(data), _place()
  process, started = found.get("process"), found.get("started")
  if here is None or found.get("place") != here or type(process) is not int or not 0 < process < 2**31:
    return False
  try:
    os.kill(process, 0)
  except ProcessLookupError:
    return True
  except OSError:
    pass  # another user's
  now = _started(process)
  return None not in (now, started) and now != started  # its number has gone to another process


def _place() -> list[str] | None:
  """Where a process number means what it means here: the host, its boot, and the namespaces of processes and of time.

  None where the system does not say.
  """
  try:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
      boot = file.read().strip()
    place = [socket.gethostname(), boot, os.readlink("/proc/self/ns/pid")]
  except (OSError, ValueError):
    return None
  try:
    place.append(os.readlink("/proc/self/ns/time"))
  except OSError:
    place.append("")  # a kernel before 5.6, with one time for all
  return place if boot else None


def _started(process: int) -> int | None:
  """When a process started, in ticks since boot; None where the system does not say."""
  try:
    with open(f"/proc/{process}/stat", "rb") as file:
      return int(file.read().rpartition(b")")[2].split()[19])
  except (OSError, ValueError, IndexError):
    return None
