"""The final number of a worked answer (GSM8K)."""

import re

_MARKED = re.compile(r"####\s*(-?\$?[\d.,]*\d)")
_NUMBER = re.compile(r"(?:(?<![\w)])-)?\$?\d[\d,]*(?:\.\d+)?")  # the minus of "16-3" is not a sign


def final_number(text: str) -> str | None:
  """Return the number after `####`, as in GSM8K's answers, else the last number in the text, or None.

  Dollar signs, thousands separators and redundant zeros are removed: `"… so it is $1,050.00."` -> `"1050"`.
  """
  marked = _MARKED.findall(text)
  found = marked or _NUMBER.findall(text)
  if not found:
    return None
  number = found[-1].replace(",", "").replace("$", "")
  sign, digits = ("-", number[1:]) if number.startswith("-") else ("", number)
  whole, _, fraction = digits.partition(".")
  fraction = fraction.rstrip("0")
  whole = whole.lstrip("0") or "0"
  number = f"{whole}.{fraction}" if fraction else whole
  return f"{sign}{number}" if number != "0" else number
