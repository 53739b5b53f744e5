"""Atomically written files in a job's progress directory.

A file begins with the SHA-256 of the rest. A truncated, changed or missing file reads as None, and its contents are
made again.
"""

import contextlib
import fcntl
import hashlib
import io
import os
import time
from collections.abc import Iterator

import numpy as np

from t5x_like.files.objects import Address, Place

_HEAD = 65  # a SHA-256 in hexadecimal, and a line end
_PULSE_SECONDS = 2.0
_PATIENCE_SECONDS = 5.0


def save(path: Place, content: bytes) -> None:
  """Write a file atomically: through a temporary file that is renamed or, at an address, directly."""
  content = hashlib.sha256(content).hexdigest().encode() + b"\n" + content
  path.parent.mkdir(parents=True, exist_ok=True)
  if isinstance(path, Address):
    path.write_bytes(content)
    return
  aside = path.with_name(f".{path.name}.{os.getpid()}")
  aside.write_bytes(content)
  aside.replace(path)


def load(path: Place) -> bytes | None:
  """Return the content written by `save`, or None."""
  try:
    data = path.read_bytes()
  except OSError:
    return None
  content = data[_HEAD:]
  return content if data[:_HEAD] == hashlib.sha256(content).hexdigest().encode() + b"\n" else None


def save_arrays(path: Place, **arrays: np.ndarray) -> None:
  buffer = io.BytesIO()
  np.savez(buffer, **arrays)
  save(path, buffer.getvalue())


def load_arrays(path: Place) -> dict[str, np.ndarray] | None:
  """Return the arrays written by `save_arrays`, or None."""
  content = load(path)
  if content is None:
    return None
  with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
    return dict(arrays)


@contextlib.contextmanager
def writing(progress: str) -> Iterator[None]:
  """Mark a local job as being written by this process, until the block or the process ends."""
  with _writers(progress) as lock:
    if lock is not None:
      fcntl.flock(lock, fcntl.LOCK_SH)
    yield


def is_written(progress: str) -> bool:
  """Return whether a process is still `writing` a local job; a runner's process may outlive the run that started it."""
  patience = time.monotonic() + _PATIENCE_SECONDS  # a process ends soon after losing its parent
  with _writers(progress) as lock:
    while lock is not None:
      try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
      except BlockingIOError:
        if time.monotonic() > patience:
          return True
        time.sleep(0.05)
  return False


@contextlib.contextmanager
def _writers(progress: str) -> Iterator[int | None]:
  if "://" in progress:
    yield None
    return
  os.makedirs(progress, exist_ok=True)
  lock = os.open(os.path.join(progress, "writers"), os.O_RDWR | os.O_CREAT, 0o666)
  try:
    yield lock
  finally:
    os.close(lock)


class Pulse:
  """A recorder of a part's progress every few seconds, for the progress bar; call it with an amount of the stage."""

  def __init__(self, path: Place):
    self._path, self._next = path, time.monotonic() + _PULSE_SECONDS

  def __call__(self, amount: int, done: bool = False) -> None:
    if done or time.monotonic() >= self._next:
      self._path.parent.mkdir(parents=True, exist_ok=True)
      self._path.write_text(f"{amount} {int(done)}")
      self._next = time.monotonic() + _PULSE_SECONDS
