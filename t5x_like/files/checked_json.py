"""The only reader of JSON from outside the program: it parses and checks the outermost type."""

import json
from typing import Any

from t5x_like.errors import UserError, one_line


def parsed(content: bytes | str, kind: type, where: str, expected: str) -> Any:
  """Return the value of a JSON text.

  Args:
    content: the text.
    kind: the value's required type, `dict` or `list`; `object` for any.
    where: the file or line, for messages.
    expected: the expected contents and the remedy, for messages.
  Raises:
    UserError: it is not JSON, is nested too deeply, has a number with too many digits, or has another type.
  """
  try:
    found = json.loads(content)
  except (ValueError, RecursionError, MemoryError) as error:
    raise UserError(f"{where}: found invalid JSON ({one_line(error)}), expected {expected}") from None
  if not isinstance(found, kind):
    raise UserError(f"{where}: found a JSON {kind_of(found)}, expected {expected}")
  return found


def kind_of(found: Any) -> str:
  """Return the name of a value's JSON type."""
  kinds = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
  return kinds.get(type(found), "null")
