"""JSON that others wrote, parsed and checked for its outermost type: the one way in which such files are read."""

import json
from typing import Any

from t5x_like.errors import UserError, one_line


def parsed(content: bytes | str, kind: type, where: str, expected: str) -> Any:
  """Returns the value in a file.

  Args:
    content: of the file.
    kind: `dict` or `list`, which the value must be; `object` for any.
    where: the file or the line, for messages.
    expected: for messages: the contents that were expected, and what to do.
  Raises:
    UserError: it is not JSON, is nested too deeply, has a number of too many digits, or is of another type.
  """
  try:
    found = json.loads(content)
  except (ValueError, RecursionError, MemoryError) as error:
    raise UserError(f"{where}: found invalid JSON ({one_line(error)}), expected {expected}") from None
  if not isinstance(found, kind):
    raise UserError(f"{where}: found a JSON {kind_of(found)}, expected {expected}")
  return found


def kind_of(found: Any) -> str:
  """The name of a value's JSON type."""
  kinds = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
  return kinds.get(type(found), "null")
