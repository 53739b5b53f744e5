"""Reads files in zip archives, by paths such as `photos.zip/train/cat/1.jpg`."""

import functools
import os
import zipfile

from t5x_like.errors import UserError, one_line
from t5x_like.files import globs
from t5x_like.files.paths import as_path

_UTF8 = 0x800  # the flag of a name
LONGEST = 2**28  # bytes of one file: far beyond any image, and no bomb


def split(path: str) -> tuple[str, str] | None:
  """Divide a path into (archive, path in it); None for a path that leads into no archive.

  The path in it is "" for the whole archive.
  """
  for end in (".zip", ".ZIP"):
    head, slash, inner = f"{path}/".partition(f"{end}/")
    if slash and as_path(head + end).exists() and globs.file_kind(head + end) == "file":
      return head + end, inner.rstrip("/")
  return None


def members(archive: str) -> dict[str, zipfile.ZipInfo]:
  """Return the visible files of an archive by name; raise UserError if it is none."""
  return _open(archive, as_path(archive).modified_time(), os.getpid())[1]


def read(archive: str, name: str) -> bytes | None:
  """Return the content of a file in an archive, None if it is too long.

  Raises UserError if it cannot be read.
  """
  archive_file, members_by_name = _open(archive, as_path(archive).modified_time(), os.getpid())
  if members_by_name[name].file_size > LONGEST:
    return None
  try:
    return archive_file.read(members_by_name[name])
  except (zipfile.BadZipFile, OSError, RuntimeError) as error:
    raise UserError(
      f"{archive}/{name}: cannot be read ({one_line(error)}); unpack the archive"
    ) from error


@functools.lru_cache(4)
def _open(
  archive: str, changed: int | None, process: int
) -> tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]:
  """Open an archive once in each process, which have positions of their own in it."""
  try:
    archive_file = zipfile.ZipFile(as_path(archive).open("rb"))
  except (zipfile.BadZipFile, OSError, RuntimeError) as error:
    raise UserError(
      f"{archive}: found no zip archive ({one_line(error)}); fetch it again"
    ) from error
  members_by_name = {}
  for info in archive_file.infolist():
    name = _name(info)
    if not info.is_dir() and not _is_hidden(name):
      members_by_name[name] = info
  return archive_file, dict(sorted(members_by_name.items()))


def _is_hidden(name: str) -> bool:
  return any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))


def _name(info: zipfile.ZipInfo) -> str:
  """Return the name of a file, which macOS writes in UTF-8 without saying so."""
  try:
    return info.filename if info.flag_bits & _UTF8 else info.filename.encode("cp437").decode()
  except UnicodeError:
    return info.filename
