"""A file of lines that a run appends to, one line at a time."""

import errno
import logging
import os
import pathlib
from collections.abc import Callable

from t5x_like.files import local

_BLOCK_BYTES = 2**16
_log = logging.getLogger("t5x_like.workdir")


class AppendedLines:
  """Append lines to a local file; an incomplete last line of a killed process is removed first.

  Appending takes the same time and memory whatever the size of the file.

  Args:
    path: the file, created if missing.
    check: the function to call before a file that was removed or replaced is opened again; it
      raises if another run has taken over the workdir, and with it the file.

  Attributes:
    last_line: the last complete line without its line end; None if there is none.

  Raises:
    OSError: the file cannot be opened, read or written; raised by every method.
  """

  def __init__(self, path: pathlib.Path, check: Callable[[], None] = lambda: None):
    self._path = path
    self._check = check
    self._path.parent.mkdir(parents=True, exist_ok=True)
    if self._path.exists():
      local.check_regular(self._path)
    self._open()
    size = os.fstat(self._file.fileno()).st_size
    complete_size, self.last_line = self._find_last_line(size)
    if complete_size < size:
      self._file.truncate(complete_size)
    local.sync(self._path.parent)

  def append(self, line: bytes) -> None:
    """Append a line, given without its line end.

    The line survives the end of the process, but a loss of power only after `flush`.
    """
    content = line + b"\n"
    if self._file.write(content) < len(content):
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    self.last_line = line

  def flush(self) -> None:
    """Write all lines to disk; if the file was removed or replaced, continue in the new one."""
    if local.replacement(self._path, self._file):
      self._check()
      _log.warning(
        "%s: was removed or replaced while the run writes to it; the run continues in the file "
        "that is there now",
        self._path,
      )
      self._file.close()
      self._path.parent.mkdir(parents=True, exist_ok=True)
      self._open()
    os.fsync(self._file.fileno())

  def close(self) -> None:
    """Close the file; a second call does nothing."""
    self._file.close()

  def _open(self) -> None:
    self._file = open(self._path, "ab+", buffering=0)

  def _find_last_line(self, size: int) -> tuple[int, bytes | None]:
    """Return the number of bytes in complete lines, and the last of these lines."""
    tail = b""
    start = size
    while start > 0 and tail.count(b"\n") < 2:
      length = min(_BLOCK_BYTES, start)
      start -= length
      self._file.seek(start)
      tail = self._file.read(length) + tail
    lines, end, torn = tail.rpartition(b"\n")
    if not end:
      return 0, None
    return size - len(torn), lines.rpartition(b"\n")[2]
