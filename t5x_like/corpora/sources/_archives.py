"""Read files in zip archives, by paths such as `photos.zip/train/cat/1.jpg`."""

import functools
import os
import zipfile

from t5x_like.errors import UserError, one_line
from t5x_like.files import globs
from t5x_like.files.paths import as_path

_UTF8 = 0x800  # the flag of a file whose name is declared as UTF-8
# The most bytes of one file: more than any image has, and few enough to stop a decompression bomb.
LONGEST = 2**28


def split(path: str) -> tuple[str, str] | None:
  """Divide a path into the archive's path and the path inside it.

  Returns:
    (archive, inner path), where "" is the whole archive; None if the path has no archive in it.
  """
  for end in (".zip", ".ZIP"):
    head, slash, inner = f"{path}/".partition(f"{end}/")
    if slash and as_path(head + end).exists() and globs.file_kind(head + end) == "file":
      return head + end, inner.rstrip("/")
  return None


def members(archive: str) -> dict[str, zipfile.ZipInfo]:
  """Return the visible files of an archive by name.

  Raises:
    UserError: the file is not a zip archive.
  """
  return _open(archive, as_path(archive).modified_time(), os.getpid())[1]


def read(archive: str, name: str) -> bytes | None:
  """Return the content of a file in an archive, or None if it is longer than `LONGEST`.

  Raises:
    UserError: the file cannot be read.
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
  archive: str, modified_time: int | None, process_id: int
) -> tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]:
  """Open an archive; return it with its visible files by name.

  The modification time and the process id are only keys of the cache: a changed archive is opened
  again, and processes do not share a file position.
  """
  try:
    archive_file = zipfile.ZipFile(as_path(archive).open("rb"))
  except (zipfile.BadZipFile, OSError, RuntimeError) as error:
    raise UserError(
      f"{archive}: found no zip archive ({one_line(error)}); fetch it again"
    ) from error
  members_by_name = {}
  for info in archive_file.infolist():
    name = _decode_name(info)
    if not info.is_dir() and not _is_hidden(name):
      members_by_name[name] = info
  return archive_file, dict(sorted(members_by_name.items()))


def _is_hidden(name: str) -> bool:
  """Return whether a file or a folder above it is hidden, or is macOS's folder of metadata."""
  return any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))


def _decode_name(info: zipfile.ZipInfo) -> str:
  """Return the name of a file.

  macOS writes names in UTF-8 without setting the flag, so `zipfile` has decoded them as cp437.
  """
  if info.flag_bits & _UTF8:
    return info.filename
  try:
    return info.filename.encode("cp437").decode()
  except UnicodeError:
    return info.filename
