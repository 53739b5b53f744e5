"""`jsonl:PATTERN`: one JSON object per line."""

from collections.abc import Iterator

from t5x_like.corpora.sources import Record, Skip
from t5x_like.corpora.sources._files import FileSource, lines
from t5x_like.files import checked_json


class Source(FileSource):
  """One record per line; blank lines are ignored."""

  def read(self, path: str) -> Iterator[tuple[str, Record | Skip]]:
    for number, line in lines(path):
      where = f"{path}:{number}"
      if isinstance(line, Skip):
        yield where, line
      elif line and not line.isspace():
        record = checked_json.parse_json(line, dict, where, "one whole JSON object on each line")
        yield where, record
