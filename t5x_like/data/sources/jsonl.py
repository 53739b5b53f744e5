"""`jsonl:PATTERN`: one JSON object per line."""

import json
from collections.abc import Iterator

from t5x_like.data.sources import Record, Skip, kind_of
from t5x_like.data.sources._files import FileSource, lines
from t5x_like.errors import UserError, one_line


class Source(FileSource):
  """One record per line; blank lines are ignored."""

  def read(self, path: str) -> Iterator[tuple[str, Record | Skip]]:
    for number, line in lines(path):
      where = f"{path}:{number}"
      if isinstance(line, Skip):
        yield where, line
      elif line and not line.isspace():
        yield where, _object(line, where)


def _object(line: str, where: str) -> Record:
  try:
    record = json.loads(line)
  except (ValueError, RecursionError) as error:
    raise UserError(
      f"{where}: found invalid JSON ({one_line(error)}), expected one whole JSON object on each line"
    ) from None
  if not isinstance(record, dict):
    raise UserError(f"{where}: found a JSON {kind_of(record)}, expected one JSON object on each line")
  return record
