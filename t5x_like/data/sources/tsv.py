"""`tsv:PATTERN`: one document a row, from one tab-separated column.

`text_field` is a column's name, and then each file starts with a header, or a number from 0, and then none does. Quotes
are ordinary characters, as in the files of the GLUE benchmark.
"""

import functools
import itertools
from collections.abc import Iterator

from t5x_like.data.sources import Skip
from t5x_like.data.sources._files import FileSource, lines
from t5x_like.errors import UserError, did_you_mean


def open_form(rest: str, *, data_dir: str | None, text_field: str) -> FileSource:
  return FileSource("tsv", rest, functools.partial(_documents, column=text_field), text_field=text_field)


def _documents(path: str, column: str) -> Iterator[str | Skip]:
  if any(isinstance(line, Skip) for _, line in itertools.islice(lines(path), 1)):
    raise UserError(f"{path}:1: found a first line of over 128 MiB, expected a table")
  rows = ((number, line if isinstance(line, Skip) else line.split("\t")) for number, line in lines(path) if line)
  number, first = next(rows, (1, []))
  if column.isdecimal():
    index = int(column)
    yield _cell(path, number, first, index, len(first))
  elif column in first:
    index = first.index(column)
  else:
    header = ", ".join(map(repr, first[:12])) or "an empty file"
    raise UserError(
      f"{path}:{number}: found no column {column!r} in the header {header}, expected the document's column there"
      f"{did_you_mean(column, first)}; a file without header takes a column number, counted from 0"
    )
  for number, row in rows:
    yield row if isinstance(row, Skip) else _cell(path, number, row, index, len(first))


def _cell(path: str, number: int, row: list[str], index: int, columns: int) -> str:
  if len(row) != columns or index >= columns:
    expected = max(columns, index + 1)
    raise UserError(f"{path}:{number}: found {len(row)} tab-separated columns, expected {expected}")
  return row[index]
