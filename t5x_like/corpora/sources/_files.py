"""Find the files of a pattern and read their lines, compressed or not, for all file formats."""

import abc
import codecs
import itertools
import os
import re
from collections.abc import Iterator
from typing import Any

from t5x_like.corpora.sources import Record, Skip, Source, _compression, check_split, field_text
from t5x_like.errors import UserError, one_line, unreadable_file_error
from t5x_like.files import globs, local
from t5x_like.files.paths import as_path, is_remote

# The most bytes of a line, or of a file that is one text; longer texts are skipped and counted.
LONGEST = 2**27

# Words in the names of files, and the splits that they mean.
SPLIT_WORDS = {"train": "train", "training": "train", "test": "test"}
SPLIT_WORDS |= dict.fromkeys(("validation", "valid", "val", "dev"), "validation")
_PIECE = 2**20
_SPLIT_NAME = re.compile(r"(?:^|,)([A-Za-z][A-Za-z0-9_]*)=")


class FileSource(Source):
  """Records of local or remote files, read one file after another; a format defines `read`.

  Args:
    spec: a glob pattern (`{00000..00007}` expands to those numbers), or `split=pattern,...`; a
      split named twice gets the files of both patterns.
    fields: the fields in use; empty means all.
    data_dir: ignored for files.
  """

  only_text = False  # whether a record is one text, which any name of a field reads

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    self.fields = fields
    self.format = type(self).__module__.rpartition(".")[2]
    self._patterns = _patterns(self.format, spec)
    self._files: dict[str, list[str]] = {}
    self._sizes: dict[str, int] = {}  # sizes of remote files
    for split, patterns in self._patterns.items():
      sizes = _files(self.format, patterns)
      self._files[split] = list(sizes)
      self._sizes |= {path: size for path, size in sizes.items() if is_remote(path)}
    all_files = {path for files in self._files.values() for path in files}
    self.name = _name(self.format, sorted(all_files))
    self.splits = tuple(self._files)

  @abc.abstractmethod
  def read(self, path: str) -> Iterator[tuple[str, Record | Skip]]:
    """Yield (where, record) of one file; `where` names the record in messages."""

  def documents_of(self, path: str, field: str) -> Iterator[str | Skip]:
    """Yield the texts of one file, for pretraining."""
    for where, record in self.read(path):
      yield record if isinstance(record, Skip) else field_text(record, field, where)

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record | Skip]]:
    return itertools.chain.from_iterable(map(self.read, self._paths(split, part)))

  def documents(
    self, split: str, field: str, part: tuple[int, int] | None = None
  ) -> Iterator[str | Skip]:
    return itertools.chain.from_iterable(
      self.documents_of(path, field) for path in self._paths(split, part)
    )

  def shared_file(self) -> str | None:
    split_of_path: dict[str, str] = {}
    for split, paths in self._files.items():
      for path in map(globs.absolute_path, paths):
        if split_of_path.setdefault(path, split) != split:
          return path
    return None

  def matches_listing(self) -> bool:
    listed: dict[str, tuple[str, int | None]] = {}
    for pattern in itertools.chain.from_iterable(self._patterns.values()):
      listed |= globs.list_matches(pattern)
    # A file that no listing has, such as one on a web server, counts as unchanged.
    return all(size == listed.get(path, ("file", size))[1] for path, size in self._sizes.items())

  def _size(self, path: str) -> int:
    """Return the size of a file in bytes; a remote file's is the one read when it was opened."""
    return self._sizes[path] if path in self._sizes else as_path(path).size()

  def paths(self, split: str) -> list[str]:
    """Return the files of a split."""
    return list(self._files[split])

  def _paths(self, split: str, part: tuple[int, int] | None) -> list[str]:
    return self._files[split][slice(*part) if part else slice(None)]

  def parts(self, split: str, part_bytes: int) -> list[tuple[int, int]]:
    """Return ranges [first, end) of file numbers, each of at least `part_bytes` bytes."""
    check_split(self, split)
    parts = []
    first = 0
    num_bytes = 0
    for number, path in enumerate(self._files[split]):
      num_bytes += self._size(path)
      if num_bytes >= part_bytes:
        parts.append((first, number + 1))
        first = number + 1
        num_bytes = 0
    return [*parts, (first, len(self._files[split]))] if num_bytes else parts

  def part_size(self, split: str, part: tuple[int, int]) -> int:
    return sum(map(self._size, self._paths(split, part)))

  def modification_times(self, split: str) -> list[int | None]:
    """Return when each file of the split was last modified, in nanoseconds.

    Times are None for remote files.
    """
    return [as_path(path).modified_time() for path in self._files[split]]

  def facts(self, field: str) -> dict[str, Any]:
    facts = self._facts()
    if self.only_text:
      return facts
    return {"form": facts.pop("form"), "text_field": field, **facts}

  def part_facts(self, split: str, field: str, part: tuple[int, int]) -> Any:
    files = []
    for path in self._paths(split, part):
      files.append([os.path.basename(path), self._size(path), as_path(path).modified_time()])
    return [self.format, None if self.only_text else field, files]

  def split_facts(self, split: str) -> dict[str, Any]:
    return self._facts() | {"changed": self.modification_times(split)}

  def _facts(self) -> dict[str, Any]:
    splits = {}
    for split, files in self._files.items():
      splits[split] = [
        {"file": os.path.basename(path), "bytes": self._size(path)} for path in files
      ]
    return {"form": self.format, "splits": splits}


def irregular_kind(path: str) -> str | None:
  """Return "a pipe", "a device" or "a socket" if a path on disk is one, else None.

  Reading such a file might never end.
  """
  if is_remote(path):
    return None
  try:
    return local.irregular_kind(path)
  except (OSError, ValueError):  # Opening the file gives a better message.
    return None


def read_bytes(path: str) -> bytes:
  """Return the bytes of a file; raise UserError if it cannot be read, or is a device or a pipe."""
  kind = irregular_kind(path)
  if kind:
    raise UserError(f"{path}: found {kind}, expected a file")
  try:
    with as_path(path).open("rb") as file:
      return file.read()
  except OSError as error:
    raise unreadable_file_error(path, error) from error


def lines(path: str, ends: bool = False) -> Iterator[tuple[int, str | Skip]]:
  """Yield (line number from 1, line) of a UTF-8 file, compressed or not.

  Memory holds one line at a time. A line ends with LF or CR LF. A line over `LONGEST` bytes yields
  a `Skip`.

  Args:
    path: path of the file.
    ends: whether to keep the terminators of lines.
  """
  number = 0
  try:
    with _compression.open_plain(path) as file:
      while line := file.readline(LONGEST + 1):
        number += 1
        if len(line) > LONGEST and not line.endswith(b"\n"):
          while line and not line.endswith(b"\n"):
            line = file.readline(_PIECE)
          yield number, Skip(f"line of over {LONGEST >> 20} MiB")
          continue
        if not ends:
          line = line.removesuffix(b"\n").removesuffix(b"\r")
        if number == 1:
          line = line.removeprefix(codecs.BOM_UTF8)
        yield number, decode(line, f"{path}:{number}")
  except _compression.DAMAGED as error:
    raise _unreadable(f"{path}:{number + 1}", path, error) from error


def read_text(path: str) -> str | Skip:
  """Read the text of a UTF-8 file, compressed or not.

  The result is a `Skip` for a file over `LONGEST` bytes.
  """
  try:
    with _compression.open_plain(path) as file:
      data = file.read(LONGEST + 1)
  except _compression.DAMAGED as error:
    raise _unreadable(path, path, error) from error
  if len(data) > LONGEST:
    return Skip(f"file of over {LONGEST >> 20} MiB")
  try:
    return data.removeprefix(codecs.BOM_UTF8).decode()
  except UnicodeDecodeError as error:
    line = error.object.count(b"\n", 0, error.start) + 1
    raise _not_utf8(f"{path}:{line}", error) from None


def decode(data: bytes, where: str) -> str:
  """Decode UTF-8 text; raise UserError with the first invalid byte."""
  try:
    return data.decode()
  except UnicodeDecodeError as error:
    raise _not_utf8(where, error) from None


def _not_utf8(where: str, error: UnicodeDecodeError) -> UserError:
  """Return the error of a text in another encoding."""
  content = f"byte 0x{error.object[error.start]:02x} that is not UTF-8 ({error.reason})"
  encoding = "ENCODING"
  if error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
    content = "text in UTF-16"
    encoding = "UTF-16"
  return UserError(
    f"{where}: found {content}, expected UTF-8 text; convert it with iconv -f {encoding} -t UTF-8"
  )


def _unreadable(where: str, path: str, error: Exception) -> UserError:
  """Return the error of a file that cannot be read or, if compressed, is damaged."""
  try:
    kind = _compression.kind(path)
  except OSError:
    kind = None
  if kind is None or isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError)):
    return unreadable_file_error(where, error)
  return UserError(
    f"{where}: found truncated or damaged {kind} data ({one_line(error)}), expected a complete "
    "file; fetch it again"
  )


def _patterns(format: str, spec: str) -> dict[str, list[str]]:
  """Parse patterns by split from `train=a,validation=b`.

  A bare pattern is the split train.
  """
  if not spec:
    raise UserError(
      f"source '{format}:': found no files, expected a path or pattern after the colon, such as "
      f"{format}:corpus/* or {format}:train=a/*,validation=b/*"
    )
  names = list(_SPLIT_NAME.finditer(spec))
  if not names or names[0].start() != 0:
    return {"train": [spec]}
  patterns: dict[str, list[str]] = {}
  for name, following in zip(names, [*names[1:], None]):
    pattern = spec[name.end() : following.start() if following else len(spec)]
    if not pattern:
      raise UserError(
        f"source '{format}:{spec}': found no files for split {name[1]!r}, expected "
        f"{name[1]}=PATTERN"
      )
    patterns.setdefault(name[1], []).append(pattern)
  return patterns


def _files(format: str, patterns: list[str]) -> dict[str, int]:
  """Return the files of patterns, sorted within each pattern, with their sizes.

  Raises:
    UserError: there are no files, or a file is empty.
  """
  files: dict[str, int | None] = {}
  for pattern in patterns:
    listed = globs.list_matches(pattern)
    for expanded in globs.expand(pattern):
      files |= _match_files(format, expanded, listed, is_whole_pattern=expanded == pattern)
  for path, size in files.items():
    try:
      files[path] = as_path(path).size() if size is None else size
    except OSError as error:
      raise unreadable_file_error(path, error) from error
    if not files[path]:
      raise UserError(
        f"{path}: found an empty file, expected documents; fetch it again or leave it out"
      )
  return files


def _match_files(
  format: str, pattern: str, listed: dict[str, tuple[str, int | None]], is_whole_pattern: bool
) -> dict[str, int | None]:
  """Return the files of a pattern whose ranges are expanded, with their sizes if listed.

  Args:
    format: the source's format, for messages.
    pattern: the pattern, without ranges.
    listed: result of `globs.list_matches` for the pattern that the user gave.
    is_whole_pattern: whether the user gave `pattern` itself, not a range that includes it.
  """
  if pattern.endswith("://"):
    raise UserError(
      f"source {format}:{pattern}: found no bucket or host, expected an address; is "
      "the variable in it set?"
    )
  if pattern in listed:
    matches = [pattern]
  elif listed and is_whole_pattern:
    matches = list(listed)
  else:
    matches = globs.find_matches(pattern)
  sizes = {}
  for path in matches:
    kind, size = listed[path] if path in listed else (globs.file_kind(path), None)
    if kind == "file":
      sizes[path] = size
    elif kind != "directory":
      raise UserError(
        f"source {format}:{path}: found {kind}, expected a file; remove it or change the pattern"
      )
  if not sizes:
    content = "only directories" if matches else "no file of that name"
    remedy = "check the path"
    if matches == [pattern]:
      content = "a directory"
      remedy = f"name its files by a pattern such as {os.path.join(pattern, '*')}"
    raise UserError(
      f"source {format}:{pattern}: found {content}, expected at least one file; {remedy}"
    )
  return sizes


def _name(format: str, files: list[str]) -> str:
  """Derive a corpus name from its files.

  The name is the stem of a single file, else the nearest folder that contains all files, else the
  format. A single file that is named after its split gives its folder's name.
  """
  paths = [globs.absolute_path(path) for path in files]
  name = os.path.basename(paths[0]).split(".")[0]
  if len(paths) > 1 or name in SPLIT_WORDS:
    name = os.path.basename(os.path.commonpath([os.path.dirname(path) for path in paths]))
  return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_.-") or format
