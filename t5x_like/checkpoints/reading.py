"""Reads the files of a checkpoint, and tells damage from faults of disks, networks, memory and permissions."""

import errno
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from t5x_like.checkpoints.manifest import Damaged
from t5x_like.errors import DamageError, TransientError, UserError, is_out_of_memory, one_line, retried

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)
_REFUSALS = (errno.EACCES, errno.EPERM)
# What the readers below orbax raise for a damaged or missing file; anything else is not the file's fault.
_DAMAGE = (DamageError, ValueError, KeyError, TypeError, EOFError, FileNotFoundError)


def together(path: str, read: Callable[[], Any]) -> Any:
  """`read()`, retried after transient errors; if it fails in one process, it fails with the same verdict in all.

  Raises:
    Damaged: what was read is wrong, or missing.
    UserError: reading is not permitted, the bucket is gone, or memory ran out.
    TransientError: it still failed after the retries, in this process or another.
  """
  value, error = None, None
  try:
    value = retried(read, path)
  except Exception as caught:
    error = caught
  verdict = _verdict(error)
  if jax.process_count() > 1:
    verdicts = multihost_utils.process_allgather(np.array([_VERDICTS.index(verdict)], np.int32)).ravel()
    worst = _VERDICTS[verdicts.max()]
    if worst != verdict:  # another process has it worse
      verdict, error = worst, RuntimeError(f"process {int(verdicts.argmax())} could not read it; see its log")
  if verdict == "read":
    return value
  if verdict == "damaged":
    told = isinstance(error, Damaged | DamageError)
    raise Damaged(str(error) if told else f"a tensor cannot be read: {one_line(error)[:300]}")
  if verdict == "refused":
    if isinstance(error, UserError):
      raise error
    raise UserError(f"{path}: checkpoint cannot be read: {one_line(error)[:300]}; fix the permissions") from error
  if verdict == "memory":
    raise UserError(
      f"{path}: memory ran out while the checkpoint was read: {one_line(error)[:300]}; use more devices or hosts"
    ) from error
  if verdict == "transient":
    raise error if isinstance(error, TransientError) else TransientError(f"{path}: {one_line(error)[:300]}") from error
  raise error


_VERDICTS = ("read", "damaged", "transient", "refused", "memory", "failed")  # from best to worst


def _verdict(error: Exception | None) -> str:
  if error is None:
    return "read"
  if isinstance(error, TransientError):
    return "transient"
  if is_out_of_memory(error):
    return "memory"
  if isinstance(error, UserError) or disk_errno(error) in _REFUSALS:
    return "refused"
  if type(error) is Exception:  # orbax's, around another
    error = error.__cause__ or error
  return "damaged" if isinstance(error, (Damaged, *_DAMAGE)) else "failed"


def disk_errno(error: BaseException | None) -> int | None:
  """The errno of the first disk error in a chain of exceptions, recognised also by its text alone."""
  seen = set()
  while error is not None and id(error) not in seen:
    seen.add(id(error))
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
      return error.errno
    for number in _DISK_ERRORS:
      if os.strerror(number) in str(error):
        return number
    error = error.__cause__ or error.__context__
  return None
