"""`json:PATTERN`: one array per file, of objects or of strings; a string is the field `text`.

A file is read whole, so a file over 128 MiB is an error; JSON lines (`jsonl`) are read one at a
time.
"""

from collections.abc import Iterator
from typing import Any

from t5x_like.corpora.sources import Record, Skip
from t5x_like.corpora.sources._files import FileSource, read_text
from t5x_like.errors import UserError
from t5x_like.files import checked_json
from t5x_like.files.checked_json import json_type_name


class Source(FileSource):
  """One record per element of the arrays."""

  def read(self, path: str) -> Iterator[tuple[str, Record]]:
    elements = parse_file(
      path, list, f"an array of objects or strings; for one object per line use jsonl:{path}"
    )
    for number, element in enumerate(elements):
      where = f"{path}, element {number}"
      if not isinstance(element, str | dict):
        raise UserError(
          f"{where}: found a JSON {json_type_name(element)}, expected an object or a string"
        )
      yield where, {"text": element} if isinstance(element, str) else element


def parse_file(path: str, kind: type, expected: str) -> Any:
  """Parse a JSON file; raise UserError if it is too large, not JSON, or of another type."""
  text = read_text(path)
  if isinstance(text, Skip):
    raise UserError(
      f"{path}: found a {text.reason}, expected a smaller one; JSON lines (jsonl) "
      "may be of any size"
    )
  return checked_json.parse_json(text, kind, path, expected)
