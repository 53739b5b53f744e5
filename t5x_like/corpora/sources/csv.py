"""`csv:PATTERN`: comma-separated columns, one record per row; each file starts with a header that names the fields.

Cells in double quotes may hold commas, line ends and doubled quotes (RFC 4180).
"""

import csv
from collections.abc import Iterator

from t5x_like.corpora.sources import Record, Skip, check_fields
from t5x_like.corpora.sources._files import LONGEST, FileSource, lines
from t5x_like.errors import UserError, one_line

csv.field_size_limit(LONGEST)  # a cell may hold a long document


class Source(FileSource):
  """One record per row after the header."""

  def read(self, path: str) -> Iterator[tuple[str, Record | Skip]]:
    def texts() -> Iterator[str]:
      for number, line in lines(path, ends=True):  # which cells may hold
        if isinstance(line, Skip):
          raise UserError(f"{path}:{number}: found a {line.reason}, expected a table")
        yield line

    rows = csv.reader(texts(), strict=True)
    names: list[str] = []
    try:
      for cells in rows:
        where = f"{path}:{rows.line_num}"
        if not cells:
          yield where, Skip("blank line")
        elif not names:
          names = cells
          check_fields(self.fields, names, where)
        elif len(cells) != len(names):
          raise UserError(f"{where}: found {len(cells)} comma-separated columns, expected {len(names)}")
        else:
          yield where, dict(zip(names, cells))
    except csv.Error as error:
      raise UserError(f"{path}:{rows.line_num}: found invalid CSV ({one_line(error)}), expected RFC 4180") from None
