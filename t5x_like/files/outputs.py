"""Files that commands write for the user: predictions, scores, pages.

A regular file is replaced atomically. Devices, pipes, sockets and open descriptors (`-`,
/dev/stdout, /dev/fd/3, a shell's `>(…)`) are written to and never replaced. The command's input
files, and files of a workdir or a store, are never written.
"""

import contextlib
import os
import pathlib
import re
import socket
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator

from t5x_like.errors import UserError
from t5x_like.files.local import replace_atomically
from t5x_like.files.paths import AnyPath, as_path

_DESCRIPTOR = re.compile(r"/(?:dev/fd|proc/self/fd)/(\d+)")
_STANDARD_STREAMS = {"-": 1, "/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
# A device or a terminal may be read and written at the same time; writing to these destroys their
# content.
_LOSING_KINDS = (stat.S_ISREG, stat.S_ISFIFO, stat.S_ISBLK)
_STORE_FILE = "manifest.json"
_STORE_MARKER = b'"t5x_like.'
_CONFIG_FILE = "config.json"  # every workdir has it
_WORKDIR_FILES = {
  "best",
  "certificate",
  "certificate.jsonl",
  "checkpoints",
  "compiled",
  _CONFIG_FILE,
  "environment.json",
  "history.jsonl",
  "imported.json",
  "lease",
  "lock",
  "metrics.jsonl",
  "model.safetensors",
  "report.html",
  "tokenizer.json",
  "vocabulary",
}


def check_new(path: str, flag: str = "") -> AnyPath:
  """Return the path of a directory to make, which may exist if it is empty.

  Args:
    path: the path or URL.
    flag: the flag that gave it, such as `--output=`, for the message.

  Raises:
    UserError: the directory has files, or the path is a file.
  """
  output = as_path(path)
  if output.exists() and (not output.is_dir() or output.names()):
    raise UserError(f"{flag}{output}: exists and is not empty; give a new directory")
  return output


class OutputFile:
  """A destination, checked before the work begins.

  Args:
    path: a local file, or `-` for standard output.
    flag: the flag that gave it.
    inputs: the files and folders that the command reads.

  Attributes:
    to_stdout: whether it is the program's standard output, so that messages must go elsewhere.
    escaped: the number of lines written so far with characters that UTF-8 cannot encode.

  Raises:
    UserError: it is an input, part of a workdir or a store, a directory, or in an unwritable
      directory.
  """

  def __init__(self, path: str, flag: str = "--output", inputs: Iterable[str] = ()):
    self._where = f"{flag}={path}"
    self.escaped = 0
    self._descriptor = _descriptor(path)
    self._path = pathlib.Path(path)
    if self._descriptor is None:
      self._path = self._resolve(path)
    status = self._status()
    self._is_replaced = self._descriptor is None and (
      status is None or stat.S_ISREG(status.st_mode)
    )
    self.to_stdout = status is not None and _is_same_file(status, _fstat(1))
    self._refuse_inputs(status, [file for file in inputs if file])
    if self._is_replaced:
      self._refuse_workdir_or_store()
      self._refuse_unwritable()

  def write(self, lines: Iterable[str]) -> None:
    """Write lines, which include their line ends.

    A lone surrogate becomes the six characters `\\udXXX`, which are valid in JSON.

    Raises:
      UserError: it cannot be written; a regular file is then unchanged.
    """
    try:
      with self._open() as file:
        for line in lines:
          file.write(self._encode(line))
    except BrokenPipeError as error:
      raise UserError(
        f"{self._where}: the reader closed it before everything was written"
      ) from error
    except OSError as error:
      raise UserError(f"{self._where}: cannot be written: {error.strerror}") from error

  def describe_escapes(self) -> str:
    """Return a line about the escaped characters, or the empty string."""
    if not self.escaped:
      return ""
    lines = f"{self.escaped:,} {'line' if self.escaped == 1 else 'lines'}"
    return (
      f"{self._where}: {lines} with lone surrogates, which UTF-8 cannot hold; they are "
      "written as \\udXXX"
    )

  def _encode(self, line: str) -> bytes:
    """Return the bytes of a line, with lone surrogates escaped and counted."""
    try:
      return line.encode()
    except UnicodeEncodeError:
      self.escaped += 1
      return line.encode(errors="backslashreplace")

  def _resolve(self, path: str) -> pathlib.Path:
    """Return the path with all links resolved; raise UserError if it cannot name a file."""
    if not path:
      raise UserError(f"{self._where}: empty; name a file, or - for standard output")
    if "://" in path:
      raise UserError(f"{self._where}: is an address; name a local file, and copy it afterwards")
    try:
      real = pathlib.Path(os.path.realpath(path))
      if real.is_dir() or path.endswith(os.sep):
        raise UserError(f"{self._where}: is a directory; name a file in it")
    except (OSError, ValueError) as error:
      raise UserError(
        f"{self._where}: no name of a file: {getattr(error, 'strerror', None) or error}"
      ) from error
    return real

  def _status(self) -> os.stat_result | None:
    """Return the status of the file or descriptor, None if there is no file yet."""
    try:
      return os.stat(self._path) if self._descriptor is None else os.fstat(self._descriptor)
    except FileNotFoundError:
      return None
    except OSError as error:
      raise UserError(f"{self._where}: cannot be written: {error.strerror}") from error

  def _refuse_inputs(self, status: os.stat_result | None, inputs: list[str]) -> None:
    """Refuse a destination that is an input, or that lies in a folder which is one."""
    for input_path in inputs:
      descriptor = 0 if input_path == "-" else _descriptor(input_path)
      try:
        input_status = os.stat(input_path) if descriptor is None else _fstat(descriptor)
      except (OSError, ValueError):
        continue  # a pattern, a URL, or missing: its reader reports the error
      if status is None:
        continue
      is_folder = input_status is not None and stat.S_ISDIR(input_status.st_mode)
      is_inside = is_folder and self._path.is_relative_to(os.path.realpath(input_path))
      loses_content = any(is_kind(status.st_mode) for is_kind in _LOSING_KINDS)
      if is_inside or (loses_content and _is_same_file(status, input_status)):
        raise UserError(f"{self._where}: would overwrite the input {input_path}; name another file")

  def _refuse_workdir_or_store(self) -> None:
    """Refuse a destination that is a file of a run's workdir, or lies in a store."""
    for folder in self._path.parents:
      first = self._path.relative_to(folder).parts[0]
      if first in _WORKDIR_FILES and (folder / _CONFIG_FILE).is_file():
        raise UserError(f"{self._where}: belongs to the workdir {folder}; name a file elsewhere")
      if _has_marker(folder / _STORE_FILE, _STORE_MARKER):
        raise UserError(f"{self._where}: is inside the store {folder}; name a file elsewhere")

  def _refuse_unwritable(self) -> None:
    """Refuse a destination in whose folder no file can be made, by making one."""
    parent = self._path.parent
    if not parent.is_dir():
      raise UserError(f"{self._where}: no directory {parent}; make it first")
    try:
      with tempfile.NamedTemporaryFile(dir=parent, prefix=f".{self._path.name[:40]}."):
        pass
    except OSError as error:
      raise UserError(f"{self._where}: cannot be written: {error.strerror}") from error

  @contextlib.contextmanager
  def _open(self) -> Iterator:
    """Open the destination to write bytes to it, in the way that its kind requires."""
    sys.stdout.flush()
    if self._is_replaced:
      with replace_atomically(self._path) as file:
        yield file
    elif self._descriptor == 1 and hasattr(sys.stdout, "buffer"):
      yield sys.stdout.buffer  # wherever the program sent its standard output
      sys.stdout.buffer.flush()
    elif self._descriptor is not None:
      with os.fdopen(os.dup(self._descriptor), "wb") as file:
        yield file
    elif stat.S_ISSOCK(os.stat(self._path).st_mode):
      with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(self._path))
        with peer.makefile("wb") as file:
          yield file
    else:
      with open(self._path, "wb") as file:
        yield file


def _has_marker(path: pathlib.Path, marker: bytes) -> bool:
  """Return whether a file has a marker in its first 4 KiB; false if it cannot be read."""
  try:
    with open(path, "rb") as file:
      return marker in file.read(4096)
  except OSError:
    return False


def _descriptor(path: str) -> int | None:
  """Return the number of the open descriptor that a path names, or None."""
  if path in _STANDARD_STREAMS:
    return _STANDARD_STREAMS[path]
  match = _DESCRIPTOR.fullmatch(path)
  return int(match[1]) if match else None


def _fstat(descriptor: int) -> os.stat_result | None:
  """Return the status of an open descriptor, None if it is closed."""
  try:
    return os.fstat(descriptor)
  except OSError:
    return None


def _is_same_file(status: os.stat_result | None, other_status: os.stat_result | None) -> bool:
  return status is not None and other_status is not None and os.path.samestat(status, other_status)


def write_output(path: str, text: str, flag: str = "--output", inputs: Iterable[str] = ()) -> None:
  """Check a destination and write a text to it; see `OutputFile`."""
  OutputFile(path, flag, inputs).write([text])
