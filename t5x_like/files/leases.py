"""Leases reserve a directory for one process where the file system has no locks."""

import json
import logging
import os
import socket
import threading
import time
import uuid

from t5x_like.errors import TransientError, UserError
from t5x_like.files.locks import DirectoryInUse
from t5x_like.files.paths import AnyPath

SECONDS = 60.0  # after this time without a heartbeat, another process may take a lease over
_BEATS_PER_LEASE = 6  # heartbeats in this time
_SETTLING_SECONDS = 0.5  # the wait for other processes that may be taking over the same lease
_ATTEMPTS = 8
_log = logging.getLogger("t5x_like.files.leases")


class Lease:
  """A file that reserves a directory for one process; a context manager.

  The holder of a lease changes the file at intervals, its heartbeat. A process that finds a lease
  watches it: if it changes, its holder is alive. Clocks are not compared. A lease whose holder is
  known to be dead is taken over at once. Only a process under the same boot of the same kernel, in
  the same PID namespace, can know: two containers may share a host name, and each has a process 1.

  A lease is replaced, renewed and removed only if it is still as it was last read, by conditional
  writes where the store has them.

  Args:
    directory: the directory.
    name: the name of the lease file.
    activity: what the holder does, for the messages of other processes, such as `is writing this
      store ({})`, with a placeholder for the process.
    seconds: how long a lease must stay unchanged before it may be taken over.

  Raises:
    DirectoryInUse: on entering, if another process holds the lease.
    TransientError: on entering, if it can be neither made nor read.
  """

  def __init__(self, directory: AnyPath, name: str, activity: str, seconds: float | None = None):
    self._directory = str(directory)
    self._file = directory / name
    self._activity = activity
    self._seconds = SECONDS if seconds is None else seconds
    self.content = {
      "holder": uuid.uuid4().hex,
      "host": socket.gethostname(),
      "process": os.getpid(),
    }
    self.content |= {"place": _process_scope(), "started": _start_time(os.getpid())}
    self._ended = threading.Event()
    self._beats = 0
    self._thread = None

  def __enter__(self) -> "Lease":
    for attempt in range(_ATTEMPTS):
      if self._file.create(self._encode()) or self._take_over():
        break
      time.sleep(0.1 * attempt)
    else:
      raise TransientError(
        f"{self._file}: exists when it is to be written, and is missing when it is read, "
        f"{_ATTEMPTS} times; remove it if it is a link, and run the same command again"
      )
    self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
    self._thread.start()
    return self

  def __exit__(self, *_) -> None:
    self.abandon()
    try:
      lease = self._file.read_version()
      if lease is not None and self._is_mine(lease.content):
        self._file.replace_version(None, lease.version)
    except (OSError, UserError, TransientError) as error:  # it must not hide how the run ended
      _log.warning("the lease is left to run out: %s", error)

  def close(self) -> None:
    self.__exit__()

  def abandon(self) -> None:
    """End the heartbeat, but leave the lease file."""
    self._ended.set()
    if self._thread is not None:
      self._thread.join()

  def check(self) -> None:
    """Check that this process still holds the lease; call it before every write.

    Raises:
      TransientError: another process took the lease over after this one had no heartbeat for too
        long, or the file is gone.
      UserError: the directory may no longer be read, or its bucket does not exist.
    """
    content = self._file.read()
    if content is None:
      self._file.parent.sizes(self._file.name)  # raises the error of a bucket that is gone
      raise TransientError(
        f"{self._file}: is gone, removed by another process or by hand, and so this directory is "
        "no longer held; this process stops; run the same command again"
      )
    if not self._is_mine(content):
      raise TransientError(f"{self._directory}: another process has taken it over; this one stops")

  def _take_over(self) -> bool:
    """Replace the existing lease if its holder is dead.

    Returns:
      Whether the lease is this process's now; if not, it is gone, or another process was faster.

    Raises:
      DirectoryInUse: the holder is alive.
    """
    lease = self._file.read_version()
    deadline = time.monotonic() + self._seconds
    while lease is not None and not _is_dead(lease.content) and time.monotonic() < deadline:
      time.sleep(self._seconds / _BEATS_PER_LEASE)
      new_lease = self._file.read_version()
      if new_lease is not None and new_lease != lease:
        holder = _describe_holder(new_lease.content)
        raise DirectoryInUse(f"{self._directory}: another process {self._activity.format(holder)}")
      lease = new_lease
    if lease is None or not self._file.replace_version(self._encode(), lease.version):
      return False
    # Where a store cannot compare and write atomically, another process may have replaced the same
    # lease at the same time. The last write counts.
    time.sleep(min(_SETTLING_SECONDS, self._seconds / _BEATS_PER_LEASE))
    return self._is_mine(self._file.read())

  def _beat(self) -> None:
    """Renew the lease at intervals, until it is another process's.

    This process may be paused for long between reading and renewing it, so `renew` compares.
    """
    while not self._ended.wait(self._seconds / _BEATS_PER_LEASE):
      try:
        lease = self._file.read_version()
        if lease is None or not self._is_mine(lease.content):
          return  # `check` will say so
        self._beats += 1
        self._file.renew(self._encode(), lease.version)
      except (OSError, UserError, TransientError):
        continue  # the store is down or locked, perhaps for others too; `check` will say so

  def _encode(self) -> bytes:
    return json.dumps(self.content | {"beats": self._beats}).encode()

  def _is_mine(self, data: bytes | None) -> bool:
    return data is not None and _parse(data).get("holder") == self.content["holder"]


def _parse(data: bytes) -> dict:
  """Return the content of a lease; empty if it is no JSON object."""
  try:
    content = json.loads(data)
  except ValueError:
    return {}
  return content if isinstance(content, dict) else {}


def _describe_holder(data: bytes) -> str:
  """Return the process and host that hold a lease, for a message."""
  content = _parse(data)
  return f"process {content.get('process')} on {content.get('host')}"


def _is_dead(data: bytes) -> bool:
  """Return whether this process would see the holder if it were alive, and does not."""
  content = _parse(data)
  scope = _process_scope()
  process = content.get("process")
  if scope is None or content.get("place") != scope:
    return False
  if type(process) is not int or not 0 < process < 2**31:
    return False
  try:
    os.kill(process, 0)
  except ProcessLookupError:
    return True
  except OSError:
    pass  # a process of another user
  holder_start = content.get("started")
  process_start = _start_time(process)
  if holder_start is None or process_start is None:
    return False
  return process_start != holder_start  # another process has reused the holder's number


def _process_scope() -> list[str] | None:
  """Return the scope in which a process number is valid: host, boot, PID and time namespaces.

  None if the system does not provide it.
  """
  try:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
      boot = file.read().strip()
    scope = [socket.gethostname(), boot, os.readlink("/proc/self/ns/pid")]
  except (OSError, ValueError):
    return None
  try:
    scope.append(os.readlink("/proc/self/ns/time"))
  except OSError:
    scope.append("")  # kernels before 5.6 have no time namespaces
  return scope if boot else None


def _start_time(process: int) -> int | None:
  """Return the start time of a process, in ticks since boot; None if it is unknown."""
  try:
    with open(f"/proc/{process}/stat", "rb") as file:
      return int(file.read().rpartition(b")")[2].split()[19])
  except (OSError, ValueError, IndexError):
    return None
