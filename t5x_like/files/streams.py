"""Keep a program running when its standard streams cannot be written, as on a full disk."""

import contextlib
import errno
import os
import sys
from typing import Any


class GuardedStream:
  """A text stream that never fails: once it cannot be written, its output is dropped.

  Attributes:
    error: the first error of a write; None if there was none.
  """

  def __init__(self, stream):
    self._stream = stream
    self.error: OSError | None = None

  def write(self, text: str) -> int:
    try:
      return self._stream.write(text)
    except OSError as error:
      self._drop(error)
      return len(text)

  def writelines(self, lines) -> None:
    for line in lines:
      self.write(line)

  def flush(self) -> None:
    try:
      self._stream.flush()
    except OSError as error:
      self._drop(error)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)

  @property
  def is_broken(self) -> bool:
    """Whether output was lost, unless its reader closed the pipe, as `head` does."""
    return self.error is not None and self.error.errno != errno.EPIPE

  def _drop(self, error: OSError) -> None:
    if isinstance(error, BlockingIOError):  # the pipe is full only for the moment
      return
    if self.error is None:
      self.error = error
    with contextlib.suppress(OSError, ValueError):
      # Python flushes the rest of the buffer at exit, which would fail again.
      null_device = os.open(os.devnull, os.O_WRONLY)
      os.dup2(null_device, self._stream.fileno())
      os.close(null_device)


def protect_streams() -> None:
  """Guard stdout and stderr, unless they have been replaced, as in a notebook or a test."""
  for name in ("stdout", "stderr"):
    stream = getattr(sys, name)
    # The parent process closed the stream: occupy its descriptor, or a file opened later gets it.
    if stream is None:
      setattr(sys, name, GuardedStream(open(os.devnull, "w", encoding="utf-8")))
    elif stream is getattr(sys, f"__{name}__"):
      setattr(sys, name, GuardedStream(stream))
