"""`csv:PATTERN`: comma-separated columns, one record per row.

Each file starts with a header that names the fields, unless all fields in use are numbers: then
there is no header, and columns are numbered from 0.

Cells in double quotes may hold commas, line ends and doubled quotes (RFC 4180). A file whose header
has semicolons or tabs and no comma is separated by these, as spreadsheets write it in many
countries.
"""

import csv
import itertools
from collections.abc import Iterator

from t5x_like.corpora.sources import Record, Skip, check_fields
from t5x_like.corpora.sources._files import LONGEST, FileSource, lines
from t5x_like.errors import UserError, one_line

_SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab"}
csv.field_size_limit(LONGEST)  # a cell may hold a long document


class Source(FileSource):
  """One record per row after the header."""

  def read(self, path: str) -> Iterator[tuple[str, Record | Skip]]:
    def read_lines() -> Iterator[str]:
      for number, line in lines(path, ends=True):  # a cell may hold line ends
        if isinstance(line, Skip):
          raise UserError(f"{path}:{number}: found a {line.reason}, expected a table")
        yield line

    is_numbered = bool(self.fields) and all(field.isdecimal() for field in self.fields)
    remaining_lines = read_lines()
    head = []  # the lines up to the header
    for line in remaining_lines:
      head.append(line)
      if line.strip():
        break
    separator = _separator(head[-1] if head else "")
    rows = csv.reader(itertools.chain(head, remaining_lines), delimiter=separator, strict=True)
    names: list[str] = []
    try:
      for cells in rows:
        where = f"{path}:{rows.line_num}"
        if not cells:
          yield where, Skip("blank line")
          continue
        if not names:
          names = [str(number) for number in range(len(cells))] if is_numbered else cells
          check_fields(self.fields, names, where)
          if not is_numbered:
            continue
        if len(cells) != len(names):
          separator_name = _SEPARATORS[separator]
          raise UserError(
            f"{where}: found {len(cells)} {separator_name}-separated columns, expected {len(names)}"
          )
        yield where, dict(zip(names, cells))
    except csv.Error as error:
      raise UserError(
        f"{path}:{rows.line_num}: found invalid CSV ({one_line(error)}), expected RFC 4180"
      ) from None


def _separator(header: str) -> str:
  """Return the separator of a header: the first of comma, semicolon and tab outside quotes."""
  unquoted = "".join(header.split('"')[::2])
  return next((mark for mark in _SEPARATORS if mark in unquoted), ",")
