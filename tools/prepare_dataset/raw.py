"""The raw files of benchmarks: which file is which split, and what a record of it is in TFDS.

Records are read by `t5x_like.corpora.sources`, so files may be compressed. An entry of the tables in `tables.py` says
the format, the usual names of the files, and how a record becomes examples.
"""

import dataclasses
import fnmatch
import itertools
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from t5x_like.corpora.sources import Record, Skip, open_source
from t5x_like.corpora.sources._files import lines
from t5x_like.errors import UserError, did_you_mean, one_line

Example = dict[str, Any]
_ENDINGS = ("", ".gz", ".bz2", ".xz", ".zst")
_SLICE = re.compile(r"(.+)\[(\d+)?%?:(?:(\d+)%)?\]$")


@dataclasses.dataclass(frozen=True)
class Raw:
  """How the raw files of a dataset are read.

  Attributes:
    source: a format of `corpora/sources`.
    files: by split, the possible names of its file, the likeliest first; a tuple of names is several files.
    examples: `(record, its number in the split, the split) -> examples`.
    columns: of a table's records, those that every file must have.
    label: the column that files of test splits may lack.
    headerless: the columns of a TSV file whose first line names none of `columns`.
    features: what the examples consist of, for datasets that TFDS lacks: `(tfds) -> dict of features`.
    about: where the dataset is from, for datasets that TFDS lacks.
  """

  source: str
  files: Mapping[str, tuple[str | tuple[str, ...], ...]]
  examples: Callable[[Record, int, str], Iterable[Example]]
  columns: tuple[str, ...] = ()
  label: str | None = None
  headerless: tuple[str, ...] = ()
  features: Callable[[Any], dict[str, Any]] | None = None
  about: str = ""


@dataclasses.dataclass(frozen=True)
class Part:
  """The files of a split, and which share of their records, in percent."""

  paths: tuple[str, ...]
  begin: int = 0
  end: int = 100


def found(raw: Raw, where: str) -> dict[str, Part]:
  """The files of each split.

  Args:
    where: `--from_files`: a directory, or `train=FILE,validation=FILE[80%:]`.

  Raises:
    UserError: there are none, or a file does not exist.
  """
  if "=" in where and not pathlib.Path(where).exists():
    return dict(_explicit(word, raw) for word in where.split(","))
  root = pathlib.Path(where)
  if not root.is_dir():
    raise UserError(f"--from_files={where}: expected a directory, or files by split: train=FILE,validation=FILE")
  inside = {path.relative_to(root).as_posix().lower(): str(path) for path in sorted(root.rglob("*")) if path.is_file()}
  parts = {}
  for split, names in raw.files.items():
    for name in names:
      several = (name,) if isinstance(name, str) else name
      paths = [_one(one, inside, raw.columns) for one in several]
      if all(paths):
        parts[split] = Part(tuple(paths))
        break
  if not parts:
    names = ", ".join(name if isinstance(name, str) else " + ".join(name) for n in raw.files.values() for name in n)
    raise UserError(f"--from_files={where}: found none of {names} (plain or compressed) there; name them by split")
  return parts


def _one(name: str, inside: dict[str, str], columns: tuple[str, ...]) -> str | None:
  """The path of a file; of one file for each column, with `{field}` for the name of the column."""
  if "*" in name:  # one file for each article
    first = next((path for file, path in inside.items() if fnmatch.fnmatchcase(file, name.lower())), None)
    return first and f"{first.rpartition('/')[0]}/{name.rpartition('/')[2]}"
  spelled = name.replace("{field}", columns[0]) if columns else name
  path = next((inside[f"{spelled}{end}".lower()] for end in _ENDINGS if f"{spelled}{end}".lower() in inside), None)
  if path is None or spelled == name:
    return path
  before, _, after = path.rpartition(f".{columns[0]}")
  return f"{before}.{{field}}{after}"


def _explicit(word: str, raw: Raw) -> tuple[str, Part]:
  split, _, path = word.partition("=")
  if split not in raw.files:
    raise UserError(
      f"--from_files: found the split {split!r}, expected one of {', '.join(raw.files)}{did_you_mean(split, raw.files)}"
    )
  begin, end = 0, 100
  if match := _SLICE.match(path):
    path, begin, end = match[1], int(match[2] or 0), int(match[3] or 100)
    if not begin < end <= 100:
      raise UserError(f"--from_files: {word}: expected a share such as [:90%] or [90%:]")
  paths = path.split("+")
  for one in paths:
    if raw.source != "parallel" and "*" not in one and not pathlib.Path(one).is_file():
      raise UserError(f"--from_files: {split}={one}: no such file")
  return split, Part(tuple(paths), begin, end)


def examples(raw: Raw, split: str, part: Part) -> Iterator[Example]:
  """The examples of a split; UserError for an unreadable record, a missing column or a wrong label, with its place."""
  records = [record for path in part.paths for record in _records(raw, split, path)]
  begin, end = (len(records) * share // 100 for share in (part.begin, part.end))
  for number, (where, record) in enumerate(itertools.islice(records, begin, end)):
    try:
      yield from raw.examples(record, number, split)
    except UserError as error:
      raise UserError(f"{where}: {error}") from None
    except (KeyError, IndexError, TypeError, ValueError) as error:
      raise UserError(
        f"{where}: found a record that lacks {one_line(error)}, or has it in another form, expected the official format"
      ) from error


def _records(raw: Raw, split: str, path: str) -> Iterator[tuple[str, Record]]:
  if raw.source != "tsv":
    fields = raw.columns
    if raw.label and not split.startswith("test"):
      fields = (*fields, raw.label)
    source = open_source(f"{raw.source}:{path}", fields=fields)
    for where, record in source.records(source.splits[0]):
      if isinstance(record, Skip):
        raise UserError(f"{where}: found a {record.reason}")
      if lacking := [field for field in fields if field not in record]:
        raise UserError(f"{where}: found no {lacking[0]!r} among {', '.join(record)}")
      yield where, record
    return
  first = next((line for _, line in lines(path) if isinstance(line, str)), "")
  header = first.removeprefix("\ufeff").split("\t")
  numbered = not {*raw.columns} & {*header} and bool(raw.headerless)
  fields = (str(len(raw.headerless) - 1),) if numbered else raw.columns
  if raw.label and not split.startswith("test") and not numbered:
    fields = (*fields, raw.label)
  source = open_source(f"tsv:{path}", fields=fields)
  for where, record in source.records(source.splits[0]):
    if isinstance(record, Skip):
      if record.reason == "blank line":
        continue
      raise UserError(f"{where}: found a {record.reason}")
    yield where, {name: record[str(i)] for i, name in enumerate(raw.headerless)} if numbered else record
