"""Locks: a directory, or a file made in it, belongs to one process at a time.

A lock of the operating system (`Lock`) ends with its process, however that ends. URLs and some
file systems have no locks. There, a `leases.Lease` is used: a file that its holder changes at
intervals.
"""

import contextlib
import fcntl
import os
import pathlib
import re
import threading

from t5x_like.errors import TransientError, UserError

_MOUNTS = pathlib.Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")  # how the kernel writes spaces in paths
# By type of file system, the mount options with which its locks exclude only processes of the same
# host; "" stands for any options.
_LOCAL_LOCKS = {
  "nfs": {"nolock", "local_lock=flock", "local_lock=all"},
  "nfs4": {"nolock", "local_lock=flock", "local_lock=all"},
  "cifs": {"nobrl"},
  "smb3": {"nobrl"},
  "lustre": {"localflock"},
  **dict.fromkeys(
    ("fuse.sshfs", "fuse.gcsfuse", "fuse.s3fs", "fuse.goofys", "fuse.rclone", "fuse.mount-s3"), {""}
  ),
}
_descriptors: set[int] = set()  # the descriptors of all locks of this process


class DirectoryInUse(UserError):
  """An error: another process has locked or leased the directory."""


class LocksUnsupported(OSError):
  """An error: the file system has no locks."""


class Lock(contextlib.AbstractContextManager):
  """A lock on a local file or directory, held until it is closed or the process ends.

  It belongs only to this process: neither a program that it starts nor a fork of it keeps the
  lock. It is valid only while the file keeps its name: a process that finds no file creates one and
  locks that.

  Args:
    path: a directory, or a file, made if missing.
    shared: whether others may hold a shared lock at the same time.
    wait: whether to wait for the others.
    beats: the seconds between heartbeats for waiting processes, which are changes of the file's
      modification time; None for none.

  Raises:
    BlockingIOError: another process has the lock.
    LocksUnsupported: the file system has no locks.
    OSError: the file cannot be made.
  """

  def __init__(
    self,
    path: str | os.PathLike,
    *,
    shared: bool = False,
    wait: bool = False,
    beats: float | None = None,
  ):
    self._path = os.fspath(path)
    self._operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    if not wait:
      self._operation |= fcntl.LOCK_NB
    self._file = _open_locked(self._path, os.O_CREAT, self._operation)
    self._ended = threading.Event()
    self._process = os.getpid()
    if beats is not None:
      os.utime(self._file)
      threading.Thread(
        target=_beat, args=(self._path, self._ended, beats), name="lock", daemon=True
      ).start()

  def check(self) -> None:
    """Check that the lock is still this process's; call it before every write.

    A deleted file is made and locked again.

    Raises:
      TransientError: the file was deleted, and another process has made its own.
      UserError: the file was deleted, and cannot be made again.
    """
    message = (
      f"{self._path}: another process has taken the workdir over after the lock was deleted; "
      "this one stops"
    )
    try:
      if not os.path.samestat(os.stat(self._path), os.fstat(self._file)):
        raise TransientError(message)
      return
    except FileNotFoundError:
      pass
    try:
      new_file = _open_locked(self._path, os.O_CREAT | os.O_EXCL, self._operation)
    except (FileExistsError, BlockingIOError):
      raise TransientError(message) from None
    except FileNotFoundError as error:
      raise UserError(
        f"{os.path.dirname(self._path)}: found no such directory any more, expected the one that "
        "this process has locked; put it back to continue, or run the same command again to start "
        "anew"
      ) from error
    except OSError as error:
      raise UserError(
        f"{self._path}: cannot be written: {error.strerror}; run the same command again"
      ) from error
    _close(self._file)
    self._file = new_file

  def close(self) -> None:
    self._ended.set()
    if self._process == os.getpid():
      _close(self._file)

  def __exit__(self, *_) -> None:
    self.close()


def _beat(path: str, ended: threading.Event, seconds: float) -> None:
  """Set a file's modification time every few seconds, until an event."""
  while not ended.wait(seconds):
    with contextlib.suppress(OSError):
      os.utime(path)


def locks_reach_other_hosts(path: str) -> bool:
  """Return whether a lock on a file excludes processes of other hosts that share its disk.

  Mounts of network disks may keep locks to their host, and then succeed on several hosts at once.
  """
  try:
    lines = _MOUNTS.read_text().splitlines()
    real_path = os.path.realpath(path)
  except OSError:
    return True
  mounts = []  # (length of the mount point, words about the file system)
  for line in lines:
    mount_part, _, file_system_part = line.partition(" - ")
    mount_point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), mount_part.split()[4])
    if real_path == mount_point or real_path.startswith(mount_point.rstrip("/") + "/"):
      mounts.append((len(mount_point), file_system_part.split()))
  if not mounts:
    return True
  _, file_system = max(mounts, key=lambda mount: mount[0])  # of the innermost mount point
  kind = file_system[0]
  options = file_system[-1].split(",")
  if kind not in _LOCAL_LOCKS:
    return True
  return _LOCAL_LOCKS[kind].isdisjoint([*options, ""])


def _open_locked(path: str, flags: int, operation: int) -> int:
  """Open a file or directory, lock it, and return its descriptor; see `Lock`.

  Args:
    path: the file, or a directory.
    flags: further flags of `os.open` for a file.
    operation: the operation of `flock`.
  """
  file = os.open(path, os.O_RDONLY if os.path.isdir(path) else os.O_RDWR | flags, 0o666)
  try:
    fcntl.flock(file, operation)
  except OSError as error:
    os.close(file)
    if isinstance(error, BlockingIOError):
      raise
    raise LocksUnsupported(error.errno, error.strerror, path) from error
  _descriptors.add(file)
  return file


def _close(file: int) -> None:
  """Close a lock's descriptor, once."""
  if file in _descriptors:
    _descriptors.remove(file)
    os.close(file)


def _close_all() -> None:
  for file in list(_descriptors):
    _close(file)


# A forked process closes its copies of the descriptors, which leaves the parent's locks.
os.register_at_fork(after_in_child=_close_all)
