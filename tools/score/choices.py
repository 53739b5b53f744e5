"""Choices and class labels as files and models spell them."""

import math
import re
import string
from collections.abc import Mapping
from typing import Any

_LETTERS = string.ascii_uppercase
_LISTS = ("choices", "options", "context_options", "endings")
_NUMBERED = re.compile(
  r"(?:choice|option|ending|sol|answer|correct_answer)[_ "
  r"]?(?:[0-9]|1[0-9]|2[0-6]|[A-Z])$"
)
_WORDS = {"true": "True", "yes": "True", "false": "False", "no": "False"}


class Choices:
  """The labels of a question's choices, or of the classes of a task, in order."""

  def __init__(self, *labels: str):
    self.labels = labels
    self._words = _WORDS if labels == ("False", "True") else {}
    self._digits = all(label.isdigit() for label in labels)

  def __call__(self, value: Any, _: Any = None) -> int:
    """Return the index of a choice given by its label or letter or, unless labels are digits, by
    its number from 0.

    A JSON number stands for a numeric label only if labels count from 0, because otherwise it is
    ambiguous. A list of numbers is a score for each choice; the first with the highest score is
    chosen.

    Raises:
      ValueError: the value is none of these.
    """
    if isinstance(value, list):
      if len(value) != len(self.labels) or not all(_is_number(one) for one in value):
        raise ValueError(
          f"found {len(value)} scores, expected {len(self.labels)} numbers, one for each choice"
        )
      return value.index(max(value))
    whole = isinstance(value, float) and value.is_integer()
    word = str(int(value) if whole else value).strip()
    word = self._words.get(word.lower(), word)
    if word in self.labels and (not _is_number(value) or not self._digits or self.labels[0] == "0"):
      return self.labels.index(word)
    if len(word) == 1 and word.upper() in _LETTERS[: len(self.labels)]:
      return _LETTERS.index(word.upper())
    if not self._digits and word.isdigit() and int(word) < len(self.labels):
      return int(word)
    hint = ", as a text, or a letter" if _is_number(value) and self._digits else ""
    raise ValueError(
      f"found the label {str(value)[:40]!r}, expected one of {', '.join(self.labels)}{hint}"
    )


def of_row(row: Mapping[str, Any], gold: Any, number: int, first: str) -> Choices:
  """Return the choices of a row: with the labels that it names, or digits from `first`, letters or
  truth values.

  Args:
    gold: the right one, whose spelling decides.
    number: their number, if the row does not show it.
  """
  question = row.get("question")
  listed = next((row[name] for name in _LISTS if row.get(name)), None)
  listed = listed or (question.get("choices") if isinstance(question, dict) else None) or ()
  if isinstance(listed, dict):  # {"label": […], "text": […]}
    labels = [str(one) for one in listed.get("label") or _LETTERS[: len(listed.get("text", ()))]]
  elif listed and all(isinstance(one, dict) and "label" in one for one in listed):
    labels = [str(one["label"]) for one in listed]
  else:
    columns = sum(bool(_NUMBERED.match(key)) for key in row)
    columns += next(place for place, letter in enumerate([*_LETTERS, ""]) if letter not in row)
    labels = list(_LETTERS[: len(listed) or columns or number])
  if isinstance(gold, bool) or str(gold).lower() in _WORDS:
    return Choices("False", "True")
  if str(gold).isdigit() and str(gold) not in labels:
    start = (
      0
      if isinstance(row.get("gold"), int) or isinstance(gold, int) and first != "1"
      else int(first)
    )
    return Choices(*(str(start + place) for place in range(len(labels))))
  return Choices(*labels)


def _is_number(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
