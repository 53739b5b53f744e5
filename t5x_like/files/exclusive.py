"""Reserve a directory for one process: by a lock, or by a lease where there are no locks."""

import errno
import os

from t5x_like.files.leases import Lease
from t5x_like.files.local import LocalPath
from t5x_like.files.locks import (
  DirectoryInUse,
  Lock,
  LocksUnsupported,
  locks_reach_other_hosts,
)
from t5x_like.files.paths import AnyPath

WRITING = "is writing this store ({}): wait for it or stop it, or choose another directory"


def hold_directory(
  directory: AnyPath, name: str, activity: str, lease_name: str, beats: float | None = None
) -> Lock | Lease:
  """Keep other processes out of a directory until the returned lock or lease is closed.

  Args:
    directory: the directory, made if missing.
    name: the name of the lock file.
    activity: what the holder does, for the messages of other processes; see `Lease`.
    lease_name: the name of the lease file.
    beats: see `Lock`.

  Raises:
    DirectoryInUse: another process has it.
    OSError: the lock file cannot be written.
  """
  if isinstance(directory, LocalPath):
    directory.mkdir(parents=True, exist_ok=True)
    try:
      if not locks_reach_other_hosts(os.fspath(directory)):
        raise LocksUnsupported(errno.ENOLCK, "locks are of one host", os.fspath(directory))
      return Lock(directory / name, beats=beats)
    except BlockingIOError:
      raise DirectoryInUse(
        f"{directory}: another process {activity.format('').replace(' ()', '')}"
      ) from None
    except LocksUnsupported:
      pass
  return Lease(directory, lease_name, activity).__enter__()
