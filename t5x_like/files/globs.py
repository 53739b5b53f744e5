"""Glob patterns of files at paths and addresses, with ranges of numbers."""

import errno
import fnmatch
import glob
import itertools
import os
import re
import stat
from collections.abc import Iterator

from t5x_like.errors import UserError, one_line
from t5x_like.files.paths import as_path, is_remote
from t5x_like.files.remote import RemotePath

_RANGE = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}")
_MOST_NUMBERS = 100_000


def expand(pattern: str) -> list[str]:
  """Expand each `{00000..00007}` to one pattern per number, zero-padded like the first; else return
  the pattern."""
  pieces = []
  ranges = []
  start = 0
  for match in _RANGE.finditer(pattern):
    low = int(match[1])
    high = int(match[2])
    if not low <= high < low + _MOST_NUMBERS:
      raise UserError(
        f"{pattern}: found the range {match[0]}, expected {{LOW..HIGH}} with LOW at most HIGH and "
        f"at most {_MOST_NUMBERS} numbers"
      )
    pieces.append(pattern[start : match.start()])
    ranges.append([f"{number:0{len(match[1])}d}" for number in range(low, high + 1)])
    start = match.end()
  tails = (*pieces, pattern[start:])
  return [
    "".join(itertools.chain.from_iterable(itertools.zip_longest(tails, numbers, fillvalue="")))
    for numbers in itertools.product(*ranges)
  ]


def absolute_path(path: str) -> str:
  """Return the path from the root of the file system; an address is one already."""
  return str(as_path(path)) if is_remote(path) else os.path.abspath(as_path(path))


def file_kind(path: str) -> str:
  """Return `file`, `directory`, or a phrase for another kind of path; raise UserError if it cannot
  be examined."""
  file = as_path(path)
  if isinstance(file, RemotePath):
    return file.about()["type"]
  try:
    mode = os.stat(file).st_mode
  except FileNotFoundError:
    return "a link to nothing"
  except OSError as error:
    raise UserError(f"{path}: cannot be read ({one_line(error)})") from error
  kinds = {
    stat.S_ISREG: "file",
    stat.S_ISDIR: "directory",
    stat.S_ISFIFO: "a pipe",
    stat.S_ISSOCK: "a socket",
  }
  return next((name for is_one, name in kinds.items() if is_one(mode)), "a device")


def find_matches(pattern: str) -> list[str]:
  """Return the sorted paths that match a glob pattern, or the pattern itself if something has that
  name.

  Raises:
    UserError: a directory cannot be listed, or the pattern is too long for a name.
  """
  found = as_path(pattern)
  try:
    if found.exists():
      return [pattern]
  except OSError as error:
    if error.errno != errno.ENAMETOOLONG:
      raise
    raise UserError(
      f"{pattern[:80]}…: found a path of {len(pattern)} characters, too long for a file's name"
    ) from None
  return (
    list(found.matches()) if isinstance(found, RemotePath) else sorted(_local_matches(str(found)))
  )


def list_matches(pattern: str) -> dict[str, tuple[str, int | None]]:
  """List what matches a pattern at an address, with (kind, size or None), in few requests.

  A range of numbers matches anything. Nothing is listed for other patterns, on a web server, or if
  only single files may be read and the pattern names them.
  """
  every = _RANGE.sub("*", pattern)
  if not is_remote(every) or every.lower().startswith("http") or not glob.has_magic(every):
    return {}
  try:
    return as_path(every).matches()
  except UserError:
    if glob.has_magic(pattern):
      raise
    return {}


def _local_matches(pattern: str) -> list[str]:
  """Glob recursively, safe from link cycles; raise UserError for an unreadable directory."""
  found = ["/" if pattern.startswith("/") else ""]
  *parts, last = [part for part in pattern.split("/") if part]
  for part in (*parts, *(("**", "*") if last == "**" else (last,))):
    if part == "**":
      found = [below for path in found for below in _directories(path, set())]
    elif glob.has_magic(part):
      found = [
        os.path.join(path, name)
        for path in found
        for name in fnmatch.filter(_names(path), part)
        if part.startswith(".") or not name.startswith(".")
      ]
    else:
      found = [path for path in (os.path.join(path, part) for path in found) if _is_there(path)]
  return list(dict.fromkeys(found))


def _directories(path: str, seen: set[tuple[int, int]]) -> Iterator[str]:
  """Yield a directory and every visible directory below it, each once, by the first path that
  reaches it."""
  if not os.path.isdir(path or "."):
    return
  found = os.stat(path or ".")
  if (found.st_dev, found.st_ino) not in seen:
    seen.add((found.st_dev, found.st_ino))
    yield path
    for name in sorted(_names(path)):
      if not name.startswith("."):
        yield from _directories(os.path.join(path, name), seen)


def _names(directory: str) -> list[str]:
  try:
    return os.listdir(directory or ".")
  except NotADirectoryError:
    return []
  except OSError as error:
    raise UserError(f"{directory}: cannot be listed ({one_line(error)})") from error


def _is_there(path: str) -> bool:
  try:
    os.lstat(path)
  except (FileNotFoundError, NotADirectoryError):
    return False
  except OSError as error:
    raise UserError(f"{path}: cannot be read ({one_line(error)})") from error
  return True
