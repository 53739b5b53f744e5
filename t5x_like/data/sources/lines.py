"""`lines:PATTERN`: one document a line."""

from collections.abc import Iterator

from t5x_like.data.sources import _files


def open_form(rest: str, *, data_dir: str | None, text_field: str) -> _files.FileSource:
  return _files.FileSource("lines", rest, _documents)


def _documents(path: str) -> Iterator[str]:
  for _, line in _files.lines(path):
    yield line
