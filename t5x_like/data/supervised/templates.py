"""Templates: from the fields of a record to a text, such as `translate English to German: {en}`.

A field is a name or a path into nested records, `{answers.0.text}`. `{sentences.*}` is a whole
list, joined by spaces. `{words.<*>}` is a list whose items follow sentinels, `<extra_id_0> The
<extra_id_1> fox`, as long as the vocabulary has any; they tell a model the positions of the items
(Raman et al. 2022, arXiv:2203.08378, "Sentinel + Tag"). Booleans become the words True and False,
as in T5's BoolQ labels. `{{` and `}}` are literal braces.
"""

import math
import string
from typing import Any

from t5x_like.corpora.sources import Record, field_value
from t5x_like.errors import UserError, one_line


class Template:
  """A parsed template, for a vocabulary with a given number of sentinels.

  Args:
    text: the template.
    key: its key in `config.task`, for messages.
    sentinels: the number of sentinels.

  Attributes:
    fields: its field names, in order.
    has_sentinels: whether its texts have sentinels.

  Raises:
    UserError: a malformed template; formats and conversions (`{x:>5}`, `{x!r}`) are not supported.
  """

  def __init__(self, text: str, key: str, sentinels: int = 0):
    self._sentinels = sentinels
    self._parts = _parse(text, key)
    fields = [field for _, field in self._parts if field is not None]
    self.fields = tuple(_without_sentinels(field) for field in fields)
    if not self.fields or "" in self.fields:
      raise UserError(
        f"config.task.{key}: found {text!r}, expected the name of a field in "
        f"braces, such as '{{text}}'"
      )
    marks_lists = any(field != _without_sentinels(field) for field in fields)
    self.has_sentinels = sentinels > 0 and marks_lists

  def __call__(self, record: Record, where: str, gaps: bool = False) -> str | None:
    """Return the text; raise UserError if a field is unknown or not text.

    A null or empty field is a gap in the text or, without `gaps`, makes it None.
    """
    parts = []
    for literal, field in self._parts:
      parts.append(literal)
      if field is not None:
        text = self._field_text(record, field, where)
        if not (text or gaps):
          return None
        parts.append(text)
    return "".join(parts)

  def _field_text(self, record: Record, field: str, where: str) -> str:
    """Return the text of a field, or the joined texts of a list."""
    plain_field = _without_sentinels(field)
    content = field_value(record, plain_field, where)
    if not isinstance(content, list) or "*" not in plain_field.split("."):
      return to_text(content, plain_field, where)
    texts = [to_text(item, plain_field, where) for item in content]
    if field != plain_field and any(texts):
      for number in range(min(len(texts), self._sentinels)):
        texts[number] = f"<extra_id_{number}> {texts[number]}".strip()
    return " ".join(text for text in texts if text)


def _parse(text: str, key: str) -> list[tuple[str, str | None]]:
  """Return the literals of a template, each with the field after it or None."""
  parts = []
  try:
    for literal, field, form, conversion in string.Formatter().parse(text):
      if form or conversion:
        raise ValueError(f"a format or conversion of {field!r}")
      parts.append((literal, field))
  except ValueError as error:
    raise UserError(
      f"config.task.{key}: found {text!r} ({one_line(error)}), expected text with fields in "
      "braces, such as 'summarize: {document}'"
    ) from error
  return parts


def to_text(content: Any, field: str, where: str) -> str:
  """Return a field's text, "" for null or white space; numbers and booleans are written out."""
  if content is None:
    return ""
  if not isinstance(content, str | int | float):
    raise UserError(
      f"{where}: found {type(content).__name__} in field {field!r}, expected text or a number; a "
      f"list's items are {field}.0, {field}.1, … and {field}.* all of them, joined by spaces"
    )
  if isinstance(content, float) and not math.isfinite(content):
    raise UserError(
      f"{where}: found {content} in field {field!r}, expected text or a finite number, or null"
    )
  text = str(content)
  return "" if text.isspace() else text


def _without_sentinels(field: str) -> str:
  """Return the field with a plain `*` for `<*>`."""
  return ".".join("*" if part == "<*>" else part for part in field.split("."))
