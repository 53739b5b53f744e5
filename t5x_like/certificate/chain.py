"""Write and read the file of a certificate: a JSON record a line, with the hash of the line before.

The first record has the hash `ORIGIN`. The hash of the last line, the *head*, identifies the whole
file: if an earlier line is changed, removed or inserted, the head changes. Lines are only appended.
"""

import hashlib
import io
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from t5x_like.errors import UserError, one_line
from t5x_like.files.appended import AppendedLines
from t5x_like.files.local import LocalPath
from t5x_like.files.segments import merge_segments, read_segments, segment_at

FILE = "certificate.jsonl"
ORIGIN = hashlib.sha256(b"t5x_like.certificate.v1").hexdigest()
# The kinds of records.
START = "start"
STEP = "step"
SAVE = "save"
EVALUATION = "evaluation"
ROLLBACK = "rollback"
Record = dict[str, Any]


def hash_line(line: bytes) -> str:
  """Return the hexadecimal SHA-256 of a line without its line end."""
  return hashlib.sha256(line).hexdigest()


class ChainWriter:
  """Append records to the chain of a workdir.

  Args:
    workdir: a local directory.
    check: see `AppendedLines`.

  Attributes:
    last_step: the step of the last record; None for a new or an unreadable chain.

  Raises:
    UserError: the file cannot be written.
  """

  def __init__(self, workdir: pathlib.Path, check: Callable[[], None]):
    self._path = pathlib.Path(workdir) / FILE
    try:
      merge_segments(pathlib.Path(workdir), FILE)
      self._lines = AppendedLines(self._path, check)
    except OSError as error:
      raise self._disk_error(error) from error
    last_line = self._lines.last_line
    self._head = ORIGIN if last_line is None else hash_line(last_line)
    self.last_step = _step_of(last_line)

  def append(self, kind: str, step: int, **facts: Any) -> None:
    """Append a record; raise UserError if it cannot be written."""
    record = {"kind": kind, "step": step} | facts | {"previous": self._head}
    line = json.dumps(record).encode()
    try:
      self._lines.append(line)
    except OSError as error:
      raise self._disk_error(error) from error
    self._head = hash_line(line)
    self.last_step = step

  def flush(self) -> None:
    """Flush all records to the disk; raise UserError if that fails."""
    try:
      self._lines.flush()
    except OSError as error:
      raise self._disk_error(error) from error

  def close(self) -> None:
    """Close the file; a second call does nothing."""
    self._lines.close()

  def _disk_error(self, error: OSError) -> UserError:
    reason = error.strerror or one_line(error)
    return UserError(
      f"{self._path}: cannot be written: {reason}; free space or fix the permissions and run the "
      "same command again"
    )


def _step_of(line: bytes | None) -> int | None:
  try:
    step = json.loads(line or b"null")["step"]
  except (ValueError, TypeError, KeyError, RecursionError):
    return None
  return step if type(step) is int else None


def read_lines(workdir: pathlib.Path, address: str) -> Iterator[bytes]:
  """Yield the complete lines of a chain, without line ends; an incomplete last line is left out.

  Args:
    workdir: a local directory.
    address: the address of the workdir, for error messages.
  Raises:
    UserError: there is no chain, or it cannot be read.
  """
  folder = LocalPath(workdir)
  if not (folder / FILE).exists() and not segment_at(folder, FILE, 0).exists():
    raise UserError(
      f"{address}/{FILE}: not there: the run was made before certificates, or the file was "
      "removed; the same train command still resumes it, and the certificate then holds from the "
      "step that it resumes at"
    )
  try:
    for line in _read_file_and_segments(folder):
      if line.endswith(b"\n"):
        yield line[:-1]
  except OSError as error:
    reason = error.strerror or one_line(error)
    raise UserError(
      f"{address}/{FILE}: cannot be read: {reason}; restore the file from a backup"
    ) from error


def _read_file_and_segments(workdir: LocalPath) -> Iterator[bytes]:
  """Yield the lines of a chain with their line ends, from its file and from segments after it."""
  path = workdir / FILE
  size = 0
  if path.exists():
    with path.open("rb") as file:
      yield from file
      size = file.tell()
  for content in read_segments(workdir, FILE, size):
    yield from io.BytesIO(content)
