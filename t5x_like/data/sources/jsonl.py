"""`jsonl:PATTERN`: one JSON object a line; the document is the string under the key `text_field`."""

import functools
import json
from collections.abc import Iterator
from typing import Any

from t5x_like.data.sources import Skip
from t5x_like.data.sources._files import FileSource, lines
from t5x_like.errors import UserError, did_you_mean, one_line


def open_form(rest: str, *, data_dir: str | None, text_field: str) -> FileSource:
  return FileSource("jsonl", rest, functools.partial(_documents, key=text_field), text_field=text_field)


def _documents(path: str, key: str) -> Iterator[str | Skip]:
  for number, line in lines(path):
    if isinstance(line, Skip):
      yield line
      continue
    if not line or line.isspace():
      continue
    try:
      record = json.loads(line)
    except (ValueError, RecursionError) as error:
      raise UserError(
        f"{path}:{number}: found invalid JSON ({one_line(error)}), expected one whole JSON object on each line"
      ) from None
    if not isinstance(record, dict):
      raise UserError(f"{path}:{number}: found a JSON {kind(record)}, expected one JSON object on each line")
    yield text_of(record, key, f"{path}:{number}")


def text_of(record: dict[str, Any], key: str, where: str) -> str:
  """The string under a key; UserError naming the place if it is missing or no string."""
  if key not in record:
    keys = ", ".join(map(repr, list(record)[:8])) or "none"
    raise UserError(
      f"{where}: found no key {key!r} among {keys}, expected the document's text there"
      f"{did_you_mean(key, record)}; choose the key with the text field option"
    )
  if not isinstance(record[key], str):
    raise UserError(f"{where}: found a JSON {kind(record[key])} under key {key!r}, expected a string")
  return record[key]


def kind(value: Any) -> str:
  kinds = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
  return kinds.get(type(value), "null")
