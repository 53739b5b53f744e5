"""File access: local paths; `gs://`, `s3://` and `az://` through etils; any other `scheme://` through fsspec."""

import fnmatch
import glob
import itertools
import os
import re
import stat
from collections.abc import Iterator
from typing import BinaryIO

from etils import epath

from t5x_like.errors import UserError, one_line

_ETILS = ("gs://", "s3://", "az://")
_RANGE = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}")
_MOST_NUMBERS = 100_000


def is_remote(path: str) -> bool:
  return "://" in path


def base_name(path: str) -> str:
  return os.path.basename(path.rstrip("/"))


def absolute(path: str) -> str:
  return path if is_remote(path) else os.path.abspath(path)


def expand(pattern: str) -> list[str]:
  """Expand each `{00000..00007}` to one pattern per number, zero-padded like the first; else return the pattern."""
  pieces, ranges, start = [], [], 0
  for match in _RANGE.finditer(pattern):
    low, high = int(match[1]), int(match[2])
    if not low <= high < low + _MOST_NUMBERS:
      raise UserError(
        f"{pattern}: found the range {match[0]}, expected {{LOW..HIGH}} with LOW at most HIGH and at "
        f"most {_MOST_NUMBERS} numbers"
      )
    pieces.append(pattern[start : match.start()])
    ranges.append([f"{number:0{len(match[1])}d}" for number in range(low, high + 1)])
    start = match.end()
  tails = (*pieces, pattern[start:])
  return [
    "".join(itertools.chain.from_iterable(itertools.zip_longest(tails, numbers, fillvalue="")))
    for numbers in itertools.product(*ranges)
  ]


def exists(path: str) -> bool:
  if not is_remote(path):
    return os.path.exists(path)
  with _refusals(path):
    return epath.Path(path).exists() if path.startswith(_ETILS) else _fsspec(path).exists(path)


def kind(path: str) -> str:
  """Return `file`, `directory`, or a phrase for another kind of path; raise UserError if it cannot be examined."""
  if is_remote(path):
    with _refusals(path):
      is_file = not epath.Path(path).is_dir() if path.startswith(_ETILS) else _fsspec(path).isfile(path)
    return "file" if is_file else "directory"
  try:
    mode = os.stat(path).st_mode
  except FileNotFoundError:
    return "a link to nothing"
  except OSError as error:
    raise UserError(f"{path}: cannot be read ({one_line(error)})") from error
  kinds = {stat.S_ISREG: "file", stat.S_ISDIR: "directory", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}
  return next((name for is_one, name in kinds.items() if is_one(mode)), "a device")


def matches(pattern: str) -> list[str]:
  """Return the sorted paths that match a glob pattern; raise UserError for a directory that cannot be listed."""
  if not is_remote(pattern):
    return sorted(_local_matches(pattern))
  fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0].rpartition("/")[0]
  with _refusals(pattern):
    if pattern.startswith(_ETILS):
      return sorted(str(path) for path in epath.Path(fixed).glob(pattern[len(fixed) + 1 :]))
    files = _fsspec(pattern)
    return sorted(files.unstrip_protocol(path) for path in files.glob(pattern))


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
  """Yield a directory and every visible directory below it, each once, by the first path that reaches it."""
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


def size(path: str) -> int:
  """Return the size of a file in bytes."""
  if not is_remote(path):
    return os.path.getsize(path)
  return epath.Path(path).stat().length if path.startswith(_ETILS) else _fsspec(path).size(path)


def changed(path: str) -> int | None:
  """Return the last modification time of a local file in nanoseconds; None for a remote file, as stores differ."""
  return None if is_remote(path) else os.stat(path).st_mtime_ns


def open_file(path: str) -> BinaryIO:
  """Open a file for reading bytes."""
  if not is_remote(path):
    return open(path, "rb")
  return epath.Path(path).open("rb") if path.startswith(_ETILS) else _fsspec(path).open(path, "rb")


def _fsspec(path: str):
  import fsspec

  return fsspec.core.url_to_fs(path)[0]


class _refusals:
  """A context that turns the error of an unreachable location into a one-line `UserError`."""

  def __init__(self, path: str):
    self._path = path

  def __enter__(self) -> None:
    pass

  def __exit__(self, kind, error, traceback) -> None:
    if isinstance(error, Exception) and not isinstance(error, UserError):
      raise UserError(
        f"{self._path}: cannot be reached ({type(error).__name__}: {one_line(error)}); check the "
        "address, the credentials and that the library of its scheme is installed"
      ) from error
