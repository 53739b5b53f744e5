"""A lease on a directory without file locks: one process holds it and regularly signals that it is alive."""

import json
import logging
import os
import socket
import threading
import time
import uuid
from typing import Protocol

from t5x_like.errors import TransientError, UserError

_TRAINING = "is training in it ({}); wait for it or stop it, or use another --workdir"
_log = logging.getLogger("t5x_like.files.lease")
_BEATS = 6  # signs of life during the time after which a silent lease may be taken


class Files(Protocol):
  """The directory operations that a lease needs; see `storage.Storage`."""

  url: str

  def read(self, name: str) -> bytes | None: ...
  def write(self, name: str, data: bytes) -> None: ...
  def create(self, name: str, data: bytes) -> bool: ...
  def delete(self, name: str) -> None: ...


class Held(UserError):
  """An error: another process holds the lease."""


class Lease:
  """A file that reserves a directory for one process; a context manager.

  A process that meets a lease watches it: if it changes, its holder is alive. Clocks are not compared. A lease whose
  holder is known to be dead is taken at once. Only a process under the same boot of the same kernel, in the same PID
  namespace, can know: two containers may share a host name, and each has a process 1.

  Args:
    storage: the directory.
    name: the name of the lease file.
    doing: the other process's activity, for messages, with a placeholder for the process.
    seconds: how long a lease must stay unchanged before it may be taken.

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
    try:
      if self._is_mine(self._storage.read(self._name)):
        self._storage.delete(self._name)
    except (OSError, UserError, TransientError) as error:  # it must not hide how the run ended
      _log.warning("the lease is left to run out: %s", error)

  def close(self) -> None:
    self.__exit__()

  def abandon(self) -> None:
    """Stop giving signs of life, but leave the lease file."""
    self._ended.set()
    if self._thread is not None:
      self._thread.join()

  def check(self) -> None:
    """Check that this process still holds the lease. Call it before writing anything another run must not see.

    Raises:
      TransientError: another process took the lease after this one gave no sign of life for too long, or the file is
        gone.
      UserError: the directory may no longer be read, or its bucket does not exist.
    """
    found = self._storage.read(self._name)
    if found is None:
      raise TransientError(
        f"{self._storage.url}/{self._name}: is gone, removed by another process or by hand, and so this directory is "
        "no longer held; this process stops; run the same command again"
      )
    if not self._is_mine(found):
      raise TransientError(f"{self._storage.url}: another process has taken it over; this one stops")

  def _take(self) -> None:
    """Delete the existing lease if its holder is dead; raise `Held` if it is alive."""
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
      except (OSError, UserError, TransientError):
        continue  # the store is down or locked, perhaps for others too; `check` will say so

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
  """Return whether the holder is known to be dead: it would be visible from this process, and is not."""
  found, here = _parsed(data), _place()
  process, started = found.get("process"), found.get("started")
  if here is None or found.get("place") != here or type(process) is not int or not 0 < process < 2**31:
    return False
  try:
    os.kill(process, 0)
  except ProcessLookupError:
    return True
  except OSError:
    pass  # a process of another user
  now = _started(process)
  return None not in (now, started) and now != started  # its number was reused by another process


def _place() -> list[str] | None:
  """Return the scope in which a process number is valid: the host, its boot, and its PID and time namespaces.

  None if the system does not tell.
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
    place.append("")  # kernels before 5.6 have no time namespaces
  return place if boot else None


def _started(process: int) -> int | None:
  """Return the start time of a process, in ticks since boot; None if the system does not tell."""
  try:
    with open(f"/proc/{process}/stat", "rb") as file:
      return int(file.read().rpartition(b")")[2].split()[19])
  except (OSError, ValueError, IndexError):
    return None
