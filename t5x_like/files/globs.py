"""Glob patterns of files at paths and URLs, with ranges of numbers."""

import errno
import fnmatch
import glob
import itertools
import os
import re
import stat
from collections.abc import Iterator

from t5x_like.errors import UserError, one_line, unreadable_file_error
from t5x_like.files.paths import as_path, is_remote
from t5x_like.files.remote import RemotePath

_RANGE = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}")
_MAX_NUMBERS = 100_000


def expand(pattern: str) -> list[str]:
  """Expand each `{00000..00007}` to one pattern per number, zero-padded like the first."""
  pieces = []
  ranges = []
  start = 0
  for match in _RANGE.finditer(pattern):
    low = int(match[1])
    high = int(match[2])
    if not low <= high < low + _MAX_NUMBERS:
      raise UserError(
        f"{pattern}: found the range {match[0]}, expected {{LOW..HIGH}} with LOW at most HIGH and "
        f"at most {_MAX_NUMBERS} numbers"
      )
    pieces.append(pattern[start : match.start()])
    ranges.append([f"{number:0{len(match[1])}d}" for number in range(low, high + 1)])
    start = match.end()
  paths = []
  for numbers in itertools.product(*ranges):
    path = ""
    for piece, number in zip(pieces, numbers, strict=True):
      path += piece + number
    paths.append(path + pattern[start:])
  return paths


def absolute_path(path: str) -> str:
  """Return the path from the root of the file system; a URL is one already."""
  return str(as_path(path)) if is_remote(path) else os.path.abspath(as_path(path))


def file_kind(path: str) -> str:
  """Return `file`, `directory`, or a phrase such as `a pipe` for another kind of path.

  Raises:
    UserError: it cannot be examined.
  """
  file = as_path(path)
  if isinstance(file, RemotePath):
    return file.about()["type"]
  try:
    mode = os.stat(file).st_mode
  except FileNotFoundError:
    return "a link to nothing"
  except OSError as error:
    raise unreadable_file_error(path, error) from error
  kinds = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
  }
  return kinds.get(stat.S_IFMT(mode), "a device")


def find_matches(pattern: str) -> list[str]:
  """Return the sorted paths that match a glob pattern, or the pattern if a file has that name.

  Raises:
    UserError: a directory cannot be listed, or the pattern is too long for a name.
  """
  path = as_path(pattern)
  try:
    if path.exists():
      return [pattern]
  except OSError as error:
    if error.errno != errno.ENAMETOOLONG:
      raise
    raise UserError(
      f"{pattern[:80]}…: found a path of {len(pattern)} characters, too long for a file's name"
    ) from None
  if isinstance(path, RemotePath):
    return list(path.matches())
  return sorted(_local_matches(str(path)))


def list_matches(pattern: str) -> dict[str, tuple[str, int | None]]:
  """List what matches a pattern at a URL, with (kind, size or None), in few requests.

  A range of numbers matches anything. Nothing is listed for other patterns, on a web server, or if
  only single files may be read and the pattern names them.
  """
  widened = _RANGE.sub("*", pattern)
  if not is_remote(widened) or widened.lower().startswith("http") or not glob.has_magic(widened):
    return {}
  try:
    return as_path(widened).matches()
  except UserError:
    if glob.has_magic(pattern):
      raise
    return {}


def _local_matches(pattern: str) -> list[str]:
  """Glob recursively, safe from link cycles; raise UserError for an unreadable directory."""
  paths = ["/" if pattern.startswith("/") else ""]
  parts = [part for part in pattern.split("/") if part]
  if parts[-1] == "**":
    parts.append("*")
  for part in parts:
    matches = []
    for path in paths:
      matches += _matches_of_part(path, part)
    paths = matches
  return list(dict.fromkeys(paths))


def _matches_of_part(path: str, part: str) -> list[str]:
  """Return the paths in a directory that match one part of a pattern."""
  if part == "**":
    return list(_directories(path, set()))
  if not glob.has_magic(part):
    joined = os.path.join(path, part)
    return [joined] if _exists(joined) else []
  names = fnmatch.filter(_names(path), part)
  if not part.startswith("."):
    names = [name for name in names if not name.startswith(".")]
  return [os.path.join(path, name) for name in names]


def _directories(path: str, visited: set[tuple[int, int]]) -> Iterator[str]:
  """Yield a directory and every visible directory below it, each once."""
  if not os.path.isdir(path or "."):
    return
  status = os.stat(path or ".")
  if (status.st_dev, status.st_ino) not in visited:
    visited.add((status.st_dev, status.st_ino))
    yield path
    for name in sorted(_names(path)):
      if not name.startswith("."):
        yield from _directories(os.path.join(path, name), visited)


def _names(directory: str) -> list[str]:
  """Return the names in a directory, none if it is a file; raise UserError if unreadable."""
  try:
    return os.listdir(directory or ".")
  except NotADirectoryError:
    return []
  except OSError as error:
    raise UserError(f"{directory}: cannot be listed ({one_line(error)})") from error


def _exists(path: str) -> bool:
  """Return whether a path exists, be it a link to nothing."""
  try:
    os.lstat(path)
  except (FileNotFoundError, NotADirectoryError):
    return False
  except OSError as error:
    raise unreadable_file_error(path, error) from error
  return True
