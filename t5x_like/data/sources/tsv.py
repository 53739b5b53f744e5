"""`tsv:PATTERN`: one document a row, from one tab-separated column.

`text_field` is a column's name, and then each file starts with a header, or a number from 0, and then none does. Quotes
are ordinary characters, as in the files of the GLUE benchmark.
"""

import functools
from collections.abc import Iterator

from t5x_like.data.sources import Skip
from t5x_like.data.sources._files import FileSource, lines
from t5x_like.errors import UserError, did_you_mean


def open_form(rest: str, *, data_dir: str | None, text_field: str) -> FileSource:
  return FileSource("tsv", rest, functools.partial(_documents, column=text_field), text_field=text_field)


def _documents(path: str, column: str) -> Iterator[str | Skip]:
  index, columns = None, 0
  for number, line in lines(path):
    if isinstance(line, Skip):
      if index is None:
        raise UserError(f"{path}:{number}: found a {line.reason}, expected a table")
      yield line
    elif not line:
      yield Skip("blank line")
    else:
      row = line.split("\t")
      if index is None:
        index, columns = _index(column, row, f"{path}:{number}"), len(row)
        if not column.isdecimal():
          continue
      if len(row) != columns or index >= columns:
        expected = max(columns, index + 1)
        raise UserError(f"{path}:{number}: found {len(row)} tab-separated columns, expected {expected}")
      yield row[index]


def _index(column: str, first: list[str], where: str) -> int:
  """Which column is meant, by the first row if it is named."""
  if column.isdecimal():
    return int(column)
  if column not in first:
    raise UserError(
      f"{where}: found no column {column!r} in the header {', '.join(map(repr, first[:12]))}, expected the document's "
      f"column there{did_you_mean(column, first)}; a file without header takes a column number, counted from 0"
    )
  if first.count(column) > 1:
    raise UserError(
      f"{where}: found {first.count(column)} columns {column!r} in the header, expected one: name them "
      "apart, or remove the header and give a column number, counted from 0"
    )
  return first.index(column)
