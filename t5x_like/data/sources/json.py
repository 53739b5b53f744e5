"""`json:PATTERN`: one JSON array a file, of strings or of objects with the document under the key `text_field`.

A file is read at once, so one of over 128 MiB is refused: JSON lines (`jsonl`) are read one at a time.
"""

import functools
import json
from collections.abc import Iterator

from t5x_like.data.sources import Skip
from t5x_like.data.sources._files import FileSource, whole
from t5x_like.data.sources.jsonl import kind, text_of
from t5x_like.errors import UserError, one_line


def open_form(rest: str, *, data_dir: str | None, text_field: str) -> FileSource:
  return FileSource("json", rest, functools.partial(_documents, key=text_field), text_field=text_field)


def _documents(path: str, key: str) -> Iterator[str]:
  text = whole(path)
  if isinstance(text, Skip):
    raise UserError(f"{path}: found a {text.reason}, expected a smaller one: write it as JSON lines for jsonl:{path}")
  try:
    records = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise UserError(
      f"{path}: found invalid JSON ({one_line(error)}), expected one JSON array; for one object a line say jsonl:{path}"
    ) from None
  if not isinstance(records, list):
    raise UserError(f"{path}: found a JSON {kind(records)}, expected an array of objects or strings")
  for number, record in enumerate(records):
    if isinstance(record, str):
      yield record
    elif isinstance(record, dict):
      yield text_of(record, key, f"{path}, element {number}")
    else:
      raise UserError(f"{path}, element {number}: found a JSON {kind(record)}, expected an object or a string")
