"""A lease on a workdir, where there are no locks: one run holds it, and says now and then that it is alive."""

import json
import os
import socket
import threading
import time
import uuid

from t5x_like.errors import TransientError, UserError
from t5x_like.storage import Storage

_NAME = "lease"
_BEATS = 6  # signs of life in the time after which a lease may be taken


class Lease:
  """Holds `lease` in a directory; a context manager.

  Whoever finds a lease watches it: if it changes, its holder lives. Clocks are not compared. A lease of a process of
  this host that is gone is taken at once.

  Args:
    storage: of the workdir.
    seconds: how long a lease must have stayed unchanged to be taken.

  Raises:
    UserError: on entering, if another process holds the lease.
  """

  def __init__(self, storage: Storage, *, seconds: float = 60):
    self._storage, self._seconds = storage, seconds
    self.content = {"holder": uuid.uuid4().hex, "host": socket.gethostname(), "process": os.getpid()}
    self._ended, self._beats, self._thread = threading.Event(), 0, None
    self._alive = time.monotonic()

  def __enter__(self) -> "Lease":
    while not self._storage.create(_NAME, self._data()):
      self._take()
    self._alive = time.monotonic()
    self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
    self._thread.start()
    return self

  def __exit__(self, *_) -> None:
    self.abandon()
    if self._is_mine(self._storage.read(_NAME)):
      self._storage.delete(_NAME)

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
    if not self._is_mine(self._storage.read(_NAME)):
      raise TransientError(f"{self._storage.url}: another process has taken this workdir; this one stops")

  def _take(self) -> None:
    """Removes the lease that is there if its holder is dead."""
    seen = self._storage.read(_NAME)
    deadline = time.monotonic() + self._seconds
    while seen is not None and not _dead(seen) and time.monotonic() < deadline:
      time.sleep(self._seconds / _BEATS)
      now = self._storage.read(_NAME)
      if now is not None and now != seen:
        raise UserError(
          f"{self._storage.url}: another process is training in it ({_told(now)}); wait for it or stop it, or"
          " use another --workdir"
        )
      seen = now
    if seen is not None and self._storage.read(_NAME) == seen:
      self._storage.delete(_NAME)

  def _beat(self) -> None:
    while not self._ended.wait(self._seconds / _BEATS):
      try:
        if not self._is_mine(self._storage.read(_NAME)):
          return  # `check` will say so
        self._beats += 1
        self._storage.write(_NAME, self._data())
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
  """Whether the holder was a process of this host and is gone."""
  found = _parsed(data)
  if found.get("host") != socket.gethostname() or not isinstance(found.get("process"), int):
    return False
  try:
    os.kill(found["process"], 0)
  except ProcessLookupError:
    return True
  except OSError:
    pass
  return False
