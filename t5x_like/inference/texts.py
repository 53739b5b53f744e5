"""Read texts from files, and write JSON lines."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from t5x_like.data.supervised.chat import read_messages
from t5x_like.errors import UserError, did_you_mean, one_line
from t5x_like.files.paths import as_path

BLANK = "blank line"

Conversation = list[dict[str, str]]


def read_texts(path: str, field: str | None = None, flag: str = "--input") -> list[Any]:
  """Return the texts of a file, None for a blank line.

  Texts are lines or, in JSON lines, the values of a key. A value may also be a conversation, a list
  of messages with `role` and `content`.

  Args:
    path: a UTF-8 file, a path or an address, or `-` for standard input. A `.jsonl` file has an
      object on every line.
    field: the key of the text, by default `text` or, in a line without it, `messages`; if given,
      any file is read as JSON lines.
    flag: the flag that gave the path, for error messages.
  Raises:
    UserError: the file is missing, empty or not UTF-8, or a line is not an object with this key.
  """
  is_plain = field is None and not path.endswith(".jsonl")
  texts = []
  for number, line in enumerate(_read_lines(path, flag), 1):
    if not line.strip():
      texts.append(None)
    elif is_plain:
      texts.append(line.removesuffix("\r"))
    else:
      texts.append(_parse_text(line, field, f"{flag}={path}: line {number}"))
  return texts


def read_objects(path: str, flag: str = "--input") -> list[dict[str, Any] | None]:
  """Return the objects of JSON lines, None for a blank line.

  Args:
    path, flag: as in `read_texts`.
  Raises:
    UserError: the file is missing, empty or not UTF-8, or a line is not an object.
  """
  records = []
  for number, line in enumerate(_read_lines(path, flag), 1):
    if line.strip():
      records.append(_parse_object(line, f"{flag}={path}: line {number}"))
    else:
      records.append(None)
  return records


def _read_lines(path: str, flag: str) -> list[str]:
  """Return the lines of a file; raise UserError if none has text."""
  try:
    data = sys.stdin.buffer.read() if path == "-" else as_path(path).read_bytes()
    content = data.decode("utf-8")
  except OSError as error:
    raise UserError(f"{flag}={path}: cannot be read: {error.strerror}") from error
  except UnicodeDecodeError as error:
    raise UserError(
      f"{flag}={path}: not UTF-8 at byte {error.start}; convert it to UTF-8"
    ) from error
  lines = content.removeprefix("\ufeff").removesuffix("\n").split("\n")
  if not any(line.strip() for line in lines):
    raise UserError(f"{flag}={path}: found no text, expected an input on every line")
  return lines


def insert_blank_errors(
  inputs: Sequence[Any], answers: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
  """Insert an `error` for each blank line into the answers to the other lines."""
  remaining = iter(answers)
  return [{"input": "", "error": BLANK} if text is None else next(remaining) for text in inputs]


def _parse_object(line: str, where: str, key: str = "") -> dict[str, Any]:
  try:
    record = json.loads(line)
  except (ValueError, RecursionError) as error:
    raise UserError(
      f"{where}: not JSON ({one_line(error)}), expected a JSON object on every line"
    ) from None
  if not isinstance(record, dict):
    raise UserError(f"{where}: found a JSON {type(record).__name__}, expected an object{key}")
  return record


def _parse_text(line: str, field: str | None, where: str) -> str | Conversation:
  """Return the text under a key of a line of JSON.

  The default key is `text` or, in a line without it, `messages`, a conversation.
  """
  record = _parse_object(line, where, f" with the key {field or 'text'!r}")
  if field is None:
    is_conversation = "text" not in record and isinstance(record.get("messages"), list)
    field = "messages" if is_conversation else "text"
  if isinstance(record.get(field), list) and record[field]:
    return [message._asdict() for message in read_messages(record, field, where)]
  if not isinstance(record.get(field), str):
    if field in record:
      description = f"{record[field]!r:.40} under the key {field!r}"
    else:
      description = f"no key {field!r}{did_you_mean(field, record)}"
    raise UserError(
      f"{where}: found {description}, expected a string or a list of messages; name "
      "its key with --text_field"
    )
  return record[field]


def to_json_lines(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
  """Return each row as a line of JSON."""
  return (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def describe_text(text: str | Conversation, number: int) -> str:
  """Describe a text, or a conversation by its last message; `number` counts from 0."""
  if not isinstance(text, str):
    text = text[-1]["content"]
  return f"text {number + 1} ({text[:40]!r}{'…' if len(text) > 40 else ''})"
