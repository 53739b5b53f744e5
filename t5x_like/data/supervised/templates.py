"""Templates: a record's fields -> text. `translate English to German: {en}` takes the field `en` of
each record.

A field is a name or a path into nested records, `{answers.0.text}`; `{sentences.*}` is a whole
list, joined by spaces, and `{words.<*>}` one whose items are behind sentinels, `<extra_id_0> The
<extra_id_1> fox`, as far as the vocabulary has any: a model of spans finds its place by them (Raman
et al. 2022, arXiv:2203.08378, "Sentinel + Tag"). Booleans become the words True and False, as in
T5's BoolQ labels. `{{` and `}}` are literal braces.
"""

import math
import string
from typing import Any

from t5x_like.corpora.sources import Record, field_value
from t5x_like.errors import UserError, one_line


class Template:
  """A parsed template, for a vocabulary with a given number of sentinels.

  Attributes:
    fields: its field names, in order.
    has_sentinels: whether its texts have sentinels.

  Raises:
    UserError: a malformed template; formats and conversions (`{x:>5}`, `{x!r}`) are not supported.
  """

  def __init__(self, text: str, key: str, sentinels: int = 0):
    try:
      self._parts = [
        (literal, field)
        for literal, field, form, conversion in string.Formatter().parse(text)
        if not (form or conversion) or _refuse(field)
      ]
    except ValueError as error:
      raise UserError(
        f"config.task.{key}: found {text!r} ({one_line(error)}), expected text with fields in "
        "braces, such as 'summarize: {document}'"
      ) from error
    self.fields = tuple(_list(field) for _, field in self._parts if field is not None)
    if not self.fields or "" in self.fields:
      raise UserError(
        f"config.task.{key}: found {text!r}, expected the name of a field in "
        f"braces, such as '{{text}}'"
      )
    self._sentinels = sentinels
    self.has_sentinels = sentinels > 0 and any(
      field != _list(field) for _, field in self._parts if field is not None
    )

  def __call__(self, record: Record, where: str, gaps: bool = False) -> str | None:
    """Return the text; raise UserError if a field is unknown or not text.

    A null or empty field is a gap in the text or, without `gaps`, makes it None.
    """
    out = []
    for literal, field in self._parts:
      out.append(literal)
      if field is not None:
        plain = _list(field)
        found = field_value(record, plain, where)
        if isinstance(found, list) and "*" in plain.split("."):
          texts = [as_text(one, plain, where) for one in found]
          if field != plain and any(texts):
            texts_with_sentinels = [
              f"<extra_id_{n}> {text}".strip() for n, text in enumerate(texts[: self._sentinels])
            ]
            texts = [*texts_with_sentinels, *texts[self._sentinels :]]
          text = " ".join(filter(None, texts))
        else:
          text = as_text(found, plain, where)
        if not (text or gaps):
          return None
        out.append(text)
    return "".join(out)


def as_text(found: Any, field: str, where: str) -> str:
  """Return a field's text, "" for null or white space; numbers and booleans are written out."""
  if found is None:
    return ""
  if not isinstance(found, str | int | float):
    raise UserError(
      f"{where}: found {type(found).__name__} in field {field!r}, expected text or a number; a "
      f"list's items are {field}.0, {field}.1, … and {field}.* all of them, joined by spaces"
    )
  if isinstance(found, float) and not math.isfinite(found):
    raise UserError(
      f"{where}: found {found} in field {field!r}, expected text or a finite number, or null"
    )
  text = str(found)
  return "" if text.isspace() else text


def _list(field: str) -> str:
  """Return the field with a plain `*` for `<*>`."""
  return ".".join("*" if part == "<*>" else part for part in field.split("."))


def _refuse(field: str) -> bool:
  raise ValueError(f"a format or conversion of {field!r}")
