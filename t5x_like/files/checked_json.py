"""Read JSON from outside the program with a check of its outermost type, and digest values."""

import hashlib
import json
import logging
import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from t5x_like.errors import UserError, one_line

Row = dict[str, Any]
_log = logging.getLogger("t5x_like.workdir")
_warned: set[tuple[str, int, bytes]] = set()  # the lines for which there was a warning


def parse_json(content: bytes | str, kind: type, where: str, expected: str) -> Any:
  """Return the value of a JSON text.

  Args:
    content: the text.
    kind: the value's required type, `dict` or `list`; `object` for any.
    where: the file or line, for messages.
    expected: the expected contents and the remedy, for messages.

  Raises:
    UserError: it is not JSON, is nested too deeply, has a number with too many digits, or has
      another type.
  """
  try:
    value = json.loads(content)
  except (ValueError, RecursionError, MemoryError) as error:
    raise UserError(
      f"{where}: found invalid JSON ({one_line(error)}), expected {expected}"
    ) from None
  if not isinstance(value, kind):
    raise UserError(f"{where}: found a JSON {json_type_name(value)}, expected {expected}")
  return value


def json_type_name(value: Any) -> str:
  """Return the name of a value's JSON type, or its own for types that JSON lacks."""
  if value is None:
    return "null"
  kinds = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
  }
  return kinds.get(type(value), type(value).__name__)


def read_rows(content: bytes, where, check: Callable[[Row], Any]) -> Iterator[tuple[Row, bytes]]:
  """Yield each line that holds an object, parsed and raw.

  Other lines, which a loss of power cut short or somebody edited, are skipped with one warning.

  Args:
    content: the content of the file.
    where: the file, for the warning.
    check: the function that raises ValueError, TypeError or KeyError for an object that is no line
      of this file.
  """
  for number, line in enumerate(content.split(b"\n"), start=1):
    if not line.strip():
      continue
    try:
      row = json.loads(line)
      if not isinstance(row, dict):
        raise ValueError("not a JSON object")
      check(row)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
      if (str(where), number, line) not in _warned:
        _warned.add((str(where), number, line))
        _log.warning(
          "%s:%d: torn or foreign line is skipped (%s)", where, number, one_line(error)[:100]
        )
      continue
    yield row, line + b"\n"


def digest(value: Any) -> str:
  """Return the hexadecimal SHA-256 of a value as JSON with sorted keys."""
  return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def replace_nonfinite(values: Mapping[str, Any]) -> dict[str, Any]:
  """Return values by name, None instead of NaN and infinities, which JSON lacks."""
  finite = {}
  for name, value in values.items():
    is_undefined = isinstance(value, numbers.Real) and not math.isfinite(value)
    finite[name] = None if is_undefined else value
  return finite
