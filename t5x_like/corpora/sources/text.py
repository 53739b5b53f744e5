"""`text:PATTERN`: one text per file."""

from collections.abc import Iterator

from t5x_like.corpora.sources import Record, Skip, _files


class Source(_files.FileSource):
  """One record per file; field `text`."""

  only_text = True

  def read(self, path: str) -> Iterator[tuple[str, Record | Skip]]:
    text = _files.read_text(path)
    yield path, text if isinstance(text, Skip) else {"text": text}
