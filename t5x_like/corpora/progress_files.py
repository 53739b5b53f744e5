"""Atomically written files in a job's progress directory.

A file begins with the SHA-256 of the rest. A truncated, changed or missing file reads as None, and
its contents are made again.
"""

import contextlib
import hashlib
import io
import time

import numpy as np

from t5x_like.files.locks import Lock, LocksUnsupported
from t5x_like.files.paths import AnyPath
from t5x_like.files.remote import RemotePath

_HEAD = 65  # a SHA-256 in hexadecimal, and a line end
_PULSE_SECONDS = 2.0
_WAIT_SECONDS = 5.0


def save(path: AnyPath, content: bytes) -> None:
  """Write a file with the checksum of its content."""
  path.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def load(path: AnyPath) -> bytes | None:
  """Return the content written by `save`, or None."""
  try:
    data = path.read_bytes()
  except OSError:
    return None
  content = data[_HEAD:]
  return content if data[:_HEAD] == hashlib.sha256(content).hexdigest().encode() + b"\n" else None


def save_arrays(path: AnyPath, **arrays: np.ndarray) -> None:
  """Write a file of named arrays."""
  buffer = io.BytesIO()
  np.savez(buffer, **arrays)
  save(path, buffer.getvalue())


def load_arrays(path: AnyPath) -> dict[str, np.ndarray] | None:
  """Return the arrays written by `save_arrays`, or None."""
  content = load(path)
  if content is None:
    return None
  with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
    return dict(arrays)


def mark_writing(progress: AnyPath) -> contextlib.AbstractContextManager:
  """Mark a local job as being written by this process, until the block or the process ends."""
  if isinstance(progress, RemotePath):
    return contextlib.nullcontext()
  progress.mkdir(parents=True, exist_ok=True)
  try:
    return Lock(progress / "writers", shared=True, wait=True)
  except LocksUnsupported:
    return contextlib.nullcontext()


def has_writer(progress: AnyPath) -> bool:
  """Return whether another process still marks a local job with `mark_writing`.

  A runner's process may outlive the run that started it.
  """
  if isinstance(progress, RemotePath):
    return False
  deadline = time.monotonic() + _WAIT_SECONDS  # a process ends soon after losing its parent
  while True:
    try:
      Lock(progress / "writers").close()
      return False
    except LocksUnsupported:
      return False
    except BlockingIOError:
      if time.monotonic() > deadline:
        return True
      time.sleep(0.05)


class Pulse:
  """Records a part's progress every few seconds, for the progress bar.

  Call it with the amount of the stage that is done.
  """

  def __init__(self, path: AnyPath):
    self._path = path
    self._next_time = time.monotonic() + _PULSE_SECONDS

  def __call__(self, amount: int, done: bool = False) -> None:
    if done or time.monotonic() >= self._next_time:
      self._path.write_text(f"{amount} {int(done)}")
      self._next_time = time.monotonic() + _PULSE_SECONDS
