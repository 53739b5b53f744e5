"""What the forms of files share: patterns to files by split, and lines out of plain or compressed files."""

import codecs
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator

from t5x_like.data.sources import Skip, _compression, _filesystem, check_split, wanted
from t5x_like.errors import UserError, one_line

LONGEST = 2**27  # bytes of a line or of a file that is one document; longer ones are passed over and counted

_SPLIT_WORDS = {"train", "training", "validation", "valid", "val", "dev", "test"}
_PIECE = 2**20
_SPLIT_NAME = re.compile(r"(?:^|,)([A-Za-z][A-Za-z0-9_]*)=")


class FileSource:
  """Documents of files, local or remote, read one file after the other.

  Args:
    form: the name of the form, for messages.
    rest: a glob pattern (`{00000..00007}` stands for those numbers), or `split=pattern,...`; a split named
      twice gets the files of both patterns.
    read: yields the documents of one file.
    facts: what else defines the content, for `fingerprint_facts`.
  """

  def __init__(self, form: str, rest: str, read: Callable[[str], Iterator[str]], **facts):
    self._form, self._read, self._facts = form, read, facts
    self._files = {split: _files(form, patterns) for split, patterns in _patterns(form, rest).items()}
    self.name = _name(form, sorted({path for files in self._files.values() for path in files}))
    self.splits = tuple(self._files)
    self.skipped = {split: Counter() for split in self.splits}

  def documents(self, split: str) -> Iterator[str]:
    check_split(self, split)
    skipped = self.skipped[split] = Counter()
    count = 0
    for document in wanted(self.read(split), skipped):
      count += 1
      yield document
    if not count:
      reasons = ", ".join(f"{n} skipped: {reason}" for reason, n in sorted(skipped.items())) or "no lines"
      files = self._files[split]
      raise UserError(
        f"{self._form}:{files[0]}: found 0 documents in {len(files)} file(s) of split {split!r} ({reasons}), "
        "expected at least one"
      )

  def parts(self, split: str, part_bytes: int) -> list[tuple[int, int]]:
    """Runs of files, as numbers [first, past) of those of the split, of at least `part_bytes` in the files."""
    check_split(self, split)
    parts, first, held = [], 0, 0
    for number, path in enumerate(self._files[split]):
      held += _filesystem.size(path)
      if held >= part_bytes:
        parts.append((first, number + 1))
        first, held = number + 1, 0
    return [*parts, (first, len(self._files[split]))] if held else parts

  def part_size(self, split: str, part: tuple[int, int]) -> int:
    return sum(map(_filesystem.size, self._files[split][slice(*part)]))

  def read(self, split: str, part: tuple[int, int] | None = None) -> Iterator[str | Skip]:
    """All documents of a split, or of one of its `parts`, and a Skip for each that cannot be one."""
    for path in self._files[split][slice(*part) if part else slice(None)]:
      yield from self._read(path)

  def changed(self, split: str) -> list[int | None]:
    """When each file of the split was last written, in nanoseconds; None for remote ones."""
    return [_filesystem.changed(path) for path in self._files[split]]

  def fingerprint_facts(self) -> dict:
    splits = {
      split: [{"file": _filesystem.base_name(path), "bytes": _filesystem.size(path)} for path in files]
      for split, files in self._files.items()
    }
    return {"form": self._form, **self._facts, "splits": splits}


def lines(path: str) -> Iterator[tuple[int, str | Skip]]:
  """Yields (line number from 1, line without its end) of a plain or compressed UTF-8 file.

  One line at a time is held. A line ends with LF or CR LF; one of more than `LONGEST` bytes is passed over in pieces
  and yields a `Skip`.
  """
  number = 0
  try:
    with _compression.opened(path) as file:
      while line := file.readline(LONGEST + 1):
        number += 1
        if len(line) > LONGEST and not line.endswith(b"\n"):
          while line and not line.endswith(b"\n"):
            line = file.readline(_PIECE)
          yield number, Skip(f"line of over {LONGEST >> 20} MiB")
          continue
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        yield number, decode(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, f"{path}:{number}")
  except _compression.DAMAGED as error:
    raise _unreadable(f"{path}:{number + 1}", path, error) from error


def whole(path: str) -> str | Skip:
  """The text of a plain or compressed UTF-8 file, or a `Skip` for one of more than `LONGEST` bytes."""
  try:
    with _compression.opened(path) as file:
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
  """UTF-8 text of bytes; raises UserError naming the place and the byte."""
  try:
    return data.decode()
  except UnicodeDecodeError as error:
    raise _not_utf8(where, error) from None


def _not_utf8(where: str, error: UnicodeDecodeError) -> UserError:
  byte = error.object[error.start]
  return UserError(f"{where}: found byte 0x{byte:02x} that is not UTF-8 ({error.reason}), expected UTF-8 text")


def _unreadable(where: str, path: str, error: Exception) -> UserError:
  try:
    kind = _compression.kind(path)
  except OSError:
    kind = None
  if kind is None or isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError)):
    return UserError(f"{where}: cannot be read ({one_line(error)})")
  return UserError(
    f"{where}: found truncated or damaged {kind} data ({one_line(error)}), expected a complete file; fetch it again"
  )


def _patterns(form: str, rest: str) -> dict[str, list[str]]:
  """`train=a,validation=b` or a bare pattern, which is the split train, as patterns by split."""
  if not rest:
    raise UserError(
      f"source '{form}:': found no files, expected a path or pattern after the colon, such as "
      f"{form}:corpus/* or {form}:train=a/*,validation=b/*"
    )
  names = list(_SPLIT_NAME.finditer(rest))
  if not names or names[0].start() != 0:
    return {"train": [rest]}
  patterns: dict[str, list[str]] = {}
  for name, following in zip(names, [*names[1:], None]):
    pattern = rest[name.end() : following.start() if following else len(rest)]
    if not pattern:
      raise UserError(f"source '{form}:{rest}': found no files for split {name[1]!r}, expected {name[1]}=PATTERN")
    patterns.setdefault(name[1], []).append(pattern)
  return patterns


def _files(form: str, patterns: list[str]) -> list[str]:
  """The files of the patterns, sorted within each; raises UserError for no match, a missing or an empty file."""
  files: dict[str, None] = {}
  for pattern in itertools.chain.from_iterable(map(_filesystem.expand, patterns)):
    literal = _filesystem.exists(pattern)
    matches = [pattern] if literal else _filesystem.matches(pattern)
    kinds = {path: _filesystem.kind(path) for path in matches}
    if odd := next((path for path, kind in kinds.items() if kind not in ("file", "directory")), None):
      raise UserError(f"source {form}:{odd}: found {kinds[odd]}, expected a file; remove it or name the others")
    found = [path for path, kind in kinds.items() if kind == "file"]
    if not found:
      what = "a directory" if literal else "nothing but directories" if matches else "no file of that name"
      mend = f"name its files by a pattern such as {os.path.join(pattern, '*')}" if literal else "check the path"
      raise UserError(f"source {form}:{pattern}: found {what}, expected at least one file; {mend}")
    files.update(dict.fromkeys(found))
  for path in files:
    try:
      size = _filesystem.size(path)
    except OSError as error:
      raise UserError(f"{path}: cannot be read ({one_line(error)})") from error
    if not size:
      raise UserError(f"{path}: found an empty file, expected documents; fetch it again or leave it out")
  return list(files)


def _name(form: str, files: list[str]) -> str:
  """A corpus name: the stem of a single file, else the nearest folder that holds all files, else the form.

  The stem of a file that is named after its split says nothing, so its folder counts instead.
  """
  files = [_filesystem.absolute(path) for path in files]
  word = os.path.basename(files[0]).split(".")[0]
  if len(files) > 1 or word in _SPLIT_WORDS:
    word = os.path.basename(os.path.commonpath([os.path.dirname(path) for path in files]))
  return re.sub(r"[^A-Za-z0-9_.-]+", "_", word).strip("_.-") or form
