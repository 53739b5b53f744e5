"""`official:{…}`: a benchmark's official files, found by their usual names in `data_dir`.

    official:{"name": "rte", "format": "tsv", "splits": {"train": ["RTE/train.tsv"], "validation":
              ["RTE/dev.tsv"]}, "classes": {"label": ["entailment", "not_entailment"]}}

`benchmarks/suites/` has such a table for each benchmark. Its keys:

    name      the name of the corpus
    format    the reader of the files, another format of this folder
    splits    by split, the name of its file, or a list of possible names, the likeliest first.
              Instead of a name, there may be a list of files that together are the split.
              `RTE/train.tsv` is found in any folder RTE below `data_dir`, or as
              `data_dir`/train.tsv
    header    the columns of a TSV file, unless its first line names one of the fields; the
              languages of `parallel`
    fields    by field, its column, or a path into the record such as `meta.label`; other fields
              keep their names, and a file without that column may have the field itself
    classes   by field, the names of the classes, in the order of their numbers, which files may
              have instead; an empty list for a field that is a number. A test split may lack the
              field: then its value is -1, as in TensorFlow datasets
    ragged    whether lines with too few columns are left out and counted; otherwise they are
              refused

Files may be compressed. Instead of a directory, `data_dir` may name the files by split, or shares
of them: `train=a.tsv[:90%],test=a.tsv[90%:]`. Splits whose files are absent are left out. A record
without `idx` gets its number in the split, from 0.
"""

import dataclasses
import fnmatch
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from t5x_like.corpora.sources import (
  Record,
  Skip,
  check_fields,
  check_split,
  field_value,
  open_source,
  parallel,
)
from t5x_like.corpora.sources import Source as Base
from t5x_like.corpora.sources._compression import without_suffix
from t5x_like.corpora.sources._files import lines
from t5x_like.errors import UserError, did_you_mean, one_line
from t5x_like.files import globs
from t5x_like.files.paths import as_path

_UNLABELLED = "-1"
_SPLIT_PREFIX = re.compile(r"(?:^|,)([a-z]\w*)=")
_SHARE = re.compile(r"(.+)\[(\d+)?%?:(?:(\d+)%)?\]")


@dataclasses.dataclass(frozen=True)
class _Table:
  """The table of a benchmark's files; the top of this file explains its keys."""

  name: str
  format: str
  splits: Mapping[str, list[str | list[str]]]
  header: list[str] = dataclasses.field(default_factory=list)
  fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
  classes: Mapping[str, list[str]] = dataclasses.field(default_factory=dict)
  ragged: bool = False


class Source(Base):
  """The records of the files under the fields' names."""

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    try:
      self._content = json.loads(spec)
      self._table = _Table(**self._content)
      self._paths, self._shares = _find_files(self._table, data_dir)
    except (AttributeError, IndexError, ValueError, TypeError) as error:
      raise UserError(
        f"source official:{spec}: found no table of files ({one_line(error)}), expected a JSON "
        "object with name, format and splits"
      ) from None
    names = dict.fromkeys(field.partition(".")[0] for field in fields)
    self._fields = tuple(names or self._table.fields)
    self.name = self._table.name
    self.splits = tuple(self._paths)

  def _open(self, split: str) -> Base:
    """Open the files of a split."""
    check_split(self, split)
    table = self._table
    if table.format == "parallel":
      return open_source(f"parallel:{','.join(self._paths[split])}", fields=tuple(table.header))
    patterns = ",".join(f"train={path}" for path in self._paths[split])
    return open_source(f"{table.format}:{patterns}")

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record | Skip]]:
    source = self._open(split)
    if self._table.format == "tsv":
      rows = self._rows(source.paths("train"))
    else:
      rows = source.records("train")
    if split in self._shares:
      all_rows = list(rows)
      first, end = (len(all_rows) * percentage // 100 for percentage in self._shares[split])
      rows = all_rows[first:end]
    number = 0
    for where, record in rows:
      if not isinstance(record, Skip):
        record = self._record(split, where, {"idx": number} | record)
        number += 1
      yield where, record

  def _rows(self, paths: list[str]) -> Iterator[tuple[str, Record | Skip]]:
    """Yield the lines of TSV files.

    The first line names the columns or, if it names no field, `header` does.
    """
    known_columns = {*self._table.header, *self._table.fields.values(), *self._fields}
    for path in paths:
      names: list[str] = []
      for number, line in lines(path):
        where = f"{path}:{number}"
        if isinstance(line, Skip):
          yield where, line
          continue
        if not line:
          continue
        cells = line.split("\t")
        if not names:
          has_header = not self._table.header or bool(known_columns & {*cells})
          names = cells if has_header else self._table.header
          check_fields((), names, where)
          if has_header:
            continue
        if len(cells) < len(names) and self._table.ragged:
          yield where, Skip("line of too few columns")
          continue
        if len(cells) != len(names):
          raise UserError(
            f"{where}: found {len(cells)} tab-separated columns, expected {len(names)}: "
            f"{', '.join(names)}"
          )
        yield where, dict(zip(names, cells))

  def _record(self, split: str, where: str, record: Record) -> Record:
    """Return a record of a file with the fields in use, by their names in the table."""
    renamed = dict(record)
    for field in self._fields:
      column = self._table.fields.get(field, field)
      if column.partition(".")[0] not in record and field in record:
        column = field
      if field in self._table.classes:
        renamed[field] = self._class(split, where, record, field, column)
      else:
        renamed[field] = field_value(record, column, where)
    return renamed

  def _class(self, split: str, where: str, record: Record, field: str, column: str) -> str:
    """Return the name of a record's class."""
    is_test = split.startswith("test")
    names = self._table.classes[field]
    label = record.get(column) if is_test else field_value(record, column, where)
    if label is None or label == "":
      if is_test and _UNLABELLED not in names:
        return _UNLABELLED
      expected = f"one of {', '.join(names)}" if names else "a number"
      raise UserError(f"{where}: found nothing in {column!r}, expected {expected}")
    text = str(label)
    # If the names are numbers, such as 1 to 5, a number is a name and not the number of a class.
    is_name = text in names or any(map(str.isdecimal, names))
    if not is_name and text.isdecimal() and int(text) < len(names):
      return names[int(text)]
    return text

  def modification_times(self, split: str) -> list[int | None]:
    return self._open(split).modification_times("train")

  def facts(self, field: str) -> dict[str, Any]:
    return {
      "text_field": field,
      "splits": {split: self.split_facts(split) for split in self.splits},
    }

  def split_facts(self, split: str) -> dict[str, Any]:
    files = self._open(split).split_facts("train")
    return {
      "form": "official",
      "table": self._content,
      "share": self._shares.get(split),
      "files": files,
    }


def _find_files(
  table: _Table, where: str | None
) -> tuple[dict[str, list[str]], dict[str, tuple[int, int]]]:
  """Return the files of each split, and the shares of them in percent.

  Raises:
    UserError: there are no files, or several of one name.
  """
  first_names = []
  for names in table.splits.values():
    name = names if isinstance(names, str) else names[0]
    first_names.append(name if isinstance(name, str) else " + ".join(name))
  usual_names = ", ".join(first_names)
  if where is None:
    raise UserError(
      f"source official, {table.name}: give the directory of its files, {usual_names}, as data_dir"
    )
  if _SPLIT_PREFIX.match(where) and not as_path(where).exists():
    return _parse_files(table, where)
  root = where.rstrip("/")
  available = {}
  for path in globs.find_matches(f"{root}/**"):
    available[without_suffix(path.removeprefix(root)).lower()] = path
  paths = {}
  for split, names in table.splits.items():
    for name in [names] if isinstance(names, str) else names:
      parts = [name] if isinstance(name, str) else name
      files = [_search(part, table, available, where) for part in parts]
      if all(files):
        paths[split] = files
        break
  if not paths:
    raise UserError(
      f"{where}: found none of the files of {table.name}, {usual_names} (plain or compressed)"
    )
  return paths, {}


def _search(name: str, table: _Table, available: Mapping[str, str], where: str) -> str | None:
  """Return the path of a file, or a pattern for the files of a folder (`*`) or of languages.

  Args:
    name: the file's name, which may hold `*` or `{field}`.
    table: the table of the files.
    available: the paths of files, by their names in lower case below `where`.
    where: the directory.
  """
  first_name = name
  if "{field}" in name:
    first_name = parallel.field_path(name, table.header, table.header[0])
  base_name = os.path.basename(first_name)
  if f"/{base_name}".lower() in available:
    matches = [available[f"/{base_name}".lower()]]
  else:
    matches = [available[key] for key in fnmatch.filter(available, f"*/{first_name.lower()}")]
  if "*" in name:
    folders = dict.fromkeys(os.path.dirname(path) for path in matches)
    matches = [f"{folder}/{os.path.basename(name)}" for folder in folders]
  if len(matches) > 1:
    raise UserError(
      f"{where}: found {matches[0]} and {matches[1]}, expected one {name}; give the folder of one "
      "of them"
    )
  if not matches:
    return None
  if "{field}" in name and base_name in matches[0]:
    folder, _, suffix = matches[0].rpartition(base_name)  # the suffix of a compression, if any
    return folder + os.path.basename(name) + suffix
  return matches[0]


def _parse_files(
  table: _Table, where: str
) -> tuple[dict[str, list[str]], dict[str, tuple[int, int]]]:
  """Parse files by split: `train=FILE,validation=FILE[90%:]`.

  Several files of a split are joined by `+`.
  """
  matches = list(_SPLIT_PREFIX.finditer(where))
  paths = {}
  shares = {}
  for match, following in zip(matches, [*matches[1:], None]):
    split = match[1]
    path = where[match.end() : following.start() if following else None]
    if split not in table.splits:
      raise UserError(
        f"{where}: found the split {split!r}, expected one of {', '.join(table.splits)}"
        f"{did_you_mean(split, table.splits)}"
      )
    share = _SHARE.fullmatch(path)
    if share:
      path = share[1]
      first = int(share[2] or 0)
      end = int(share[3] or 100)
      if not first < end <= 100:
        raise UserError(f"{where}: {split}: expected a share such as [:90%] or [90%:]")
      shares[split] = first, end
    paths[split] = path.split("+")
    if table.format == "parallel":
      continue
    for file in paths[split]:
      if "*" not in file and not as_path(file).exists():
        raise UserError(f"{file}: found no such file, expected the file of the split {split}")
  return paths, shares
