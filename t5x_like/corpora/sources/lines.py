"""`lines:PATTERN`: one text per line."""

from collections.abc import Iterator

from t5x_like.corpora.sources import Record, Skip, _files


class Source(_files.FileSource):
  """One record per line, blank lines included; field `text`."""

  only_text = True

  def read(self, path: str) -> Iterator[tuple[str, Record | Skip]]:
    for number, line in _files.lines(path):
      yield f"{path}:{number}", line if isinstance(line, Skip) else {"text": line}
