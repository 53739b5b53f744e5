"""Let a program go on when nobody can read its standard streams, as on a full disk."""

import contextlib
import errno
import os
import sys
from typing import Any


class GuardedStream:
  """A text stream that never fails: once it cannot be written, its output is dropped.

  Attributes:
    error: why it could not be written; None if it could.
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
    """Whether output was lost for another reason than that its reader has had enough."""
    return self.error is not None and self.error.errno != errno.EPIPE

  def _drop(self, error: OSError) -> None:
    if isinstance(error, BlockingIOError):  # a pipe that is full now
      return
    if self.error is None:
      self.error = error
    with contextlib.suppress(OSError, ValueError):
      nowhere = os.open(os.devnull, os.O_WRONLY)
      os.dup2(nowhere, self._stream.fileno())  # the rest of a buffer is written at the end
      os.close(nowhere)


def protect_streams() -> None:
  """Guard stdout and stderr, unless they are another object's, as in a notebook or a test."""
  for name in ("stdout", "stderr"):
    stream = getattr(sys, name)
    # closed by whoever started the program: no file that is opened later may take its number
    if stream is None:
      setattr(sys, name, GuardedStream(open(os.devnull, "w", encoding="utf-8")))
    elif stream is getattr(sys, f"__{name}__"):
      setattr(sys, name, GuardedStream(stream))
