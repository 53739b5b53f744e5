"""`tsv:PATTERN`: tab-separated columns, one record per line.

Each file starts with a header that names the fields, unless all fields in use are numbers: then
there is no header, and columns are numbered from 0. Quotes are ordinary characters, as in the files
of the GLUE benchmark.
"""

from collections.abc import Iterator

from t5x_like.corpora.sources import Record, Skip, check_fields
from t5x_like.corpora.sources._files import FileSource, lines
from t5x_like.errors import UserError


class Source(FileSource):
  """One record per line after the header."""

  def read(self, path: str) -> Iterator[tuple[str, Record | Skip]]:
    is_numbered = bool(self.fields) and all(field.isdecimal() for field in self.fields)
    names: list[str] = []
    for number, line in lines(path):
      where = f"{path}:{number}"
      if isinstance(line, Skip):
        if not names:
          raise UserError(f"{where}: found a {line.reason}, expected a table")
        yield where, line
        continue
      if not line:
        yield where, Skip("blank line")
        continue
      cells = line.split("\t")
      if not names:
        names = [str(i) for i in range(len(cells))] if is_numbered else cells
        if not is_numbered:
          check_fields(self.fields, names, where)
          continue
      expected = len(names)
      if is_numbered:
        expected = max(expected, *(int(field) + 1 for field in self.fields))
      if len(cells) != expected:
        raise UserError(f"{where}: found {len(cells)} tab-separated columns, expected {expected}")
      yield where, dict(zip(names, cells))
