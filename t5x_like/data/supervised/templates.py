"""Templates: a record's fields -> text. `translate English to German: {en}` takes the field `en` of each record.

A field is a name or a path into nested records, `{answers.0.text}`; `{sentences.*}` is a whole list, joined by spaces.
Booleans become the words True and False, as in T5's BoolQ labels. `{{` and `}}` are literal braces.
"""

import math
import string
from typing import Any

from t5x_like.data.sources import Record, value
from t5x_like.errors import UserError, one_line


class Template:
  """A parsed template.

  Attributes:
    fields: its field names, in order.

  Raises:
    UserError: a malformed template; formats and conversions (`{x:>5}`, `{x!r}`) are not supported.
  """

  def __init__(self, text: str, key: str):
    try:
      self._parts = [
        (literal, field)
        for literal, field, form, conversion in string.Formatter().parse(text)
        if not (form or conversion) or _refuse(field)
      ]
    except ValueError as error:
      raise UserError(
        f"config.task.{key}: found {text!r} ({one_line(error)}), expected text with fields in braces, "
        "such as 'summarize: {document}'"
      ) from error
    self.fields = tuple(field for _, field in self._parts if field is not None)
    if not self.fields or "" in self.fields:
      raise UserError(f"config.task.{key}: found {text!r}, expected the name of a field in braces, such as '{{text}}'")

  def __call__(self, record: Record, where: str) -> str | None:
    """The text, or None if a field is null or empty; UserError for an unknown field or one that is not text."""
    out = []
    for literal, field in self._parts:
      out.append(literal)
      if field is not None:
        found = value(record, field, where)
        if isinstance(found, list) and "*" in field.split("."):
          text = " ".join(filter(None, (as_text(one, field, where) for one in found)))
        else:
          text = as_text(found, field, where)
        if not text:
          return None
        out.append(text)
    return "".join(out)


def as_text(found: Any, field: str, where: str) -> str:
  """A field's text, "" for null or white space; numbers and booleans are written out."""
  if found is None:
    return ""
  if not isinstance(found, str | int | float):
    raise UserError(
      f"{where}: found {type(found).__name__} in field {field!r}, expected text or a number; a list's "
      f"items are {field}.0, {field}.1, … and {field}.* all of them, joined by spaces"
    )
  if isinstance(found, float) and not math.isfinite(found):
    raise UserError(f"{where}: found {found} in field {field!r}, expected text or a finite number, or null")
  text = str(found)
  return "" if text.isspace() else text


def _refuse(field: str) -> bool:
  raise ValueError(f"a format or conversion of {field!r}")
