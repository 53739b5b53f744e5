"""Parse choices and class labels as files and models spell them."""

import math
import re
import string
from collections.abc import Mapping
from typing import Any

_LETTERS = string.ascii_uppercase
_LISTS = ("choices", "options", "context_options", "endings")
_NUMBERED = re.compile(
  r"(?:choice|option|ending|sol|answer|correct_answer)[_ ]?(?:[0-9]|1[0-9]|2[0-6]|[A-Z])$"
)
_WORDS = {"true": "True", "yes": "True", "false": "False", "no": "False"}


class Choices:
  """The labels of a question's choices, or of the classes of a task, in order."""

  def __init__(self, *labels: str):
    self.labels = labels
    self._words = _WORDS if labels == ("False", "True") else {}
    self._digits = all(label.isdigit() for label in labels)

  def __call__(self, value: Any, _: Any = None) -> int:
    """Return the index of a choice from its label, letter or number.

    A number counts from 0, and stands for a choice unless labels are digits. A JSON number stands
    for a numeric label only if labels count from 0, because otherwise it is ambiguous. A list of
    numbers is a score for each choice; the first with the highest score is chosen.

    Raises:
      ValueError: the value is none of these.
    """
    if isinstance(value, list):
      if len(value) != len(self.labels) or not all(_is_number(score) for score in value):
        raise ValueError(
          f"found {len(value)} scores, expected {len(self.labels)} numbers, one for each choice"
        )
      return value.index(max(value))
    is_whole = isinstance(value, float) and value.is_integer()
    label = str(int(value) if is_whole else value).strip()
    label = self._words.get(label.lower(), label)
    is_ambiguous = _is_number(value) and self._digits and self.labels[0] != "0"
    if label in self.labels and not is_ambiguous:
      return self.labels.index(label)
    if len(label) == 1 and label.upper() in _LETTERS[: len(self.labels)]:
      return _LETTERS.index(label.upper())
    if not self._digits and label.isdigit() and int(label) < len(self.labels):
      return int(label)
    hint = ", as a text, or a letter" if _is_number(value) and self._digits else ""
    raise ValueError(
      f"found the label {str(value)[:40]!r}, expected one of {', '.join(self.labels)}{hint}"
    )


def choices_of_row(row: Mapping[str, Any], gold: Any, number: int, first: str) -> Choices:
  """Return the choices of a row: its own labels, or digits from `first`, letters or truth values.

  Args:
    gold: the right one, whose spelling decides.
    number: their number, if the row does not show it.
  """
  if isinstance(gold, bool) or str(gold).lower() in _WORDS:
    return Choices("False", "True")
  labels = _labels_of_row(row, number)
  if str(gold).isdigit() and str(gold) not in labels:
    start = int(first)
    if isinstance(row.get("gold"), int) or (isinstance(gold, int) and first != "1"):
      start = 0
    return Choices(*(str(start + index) for index in range(len(labels))))
  return Choices(*labels)


def _labels_of_row(row: Mapping[str, Any], number: int) -> list[str]:
  """Return the labels of a row's choices, or as many letters as it has choices."""
  question = row.get("question")
  choices = next((row[name] for name in _LISTS if row.get(name)), None)
  if choices is None and isinstance(question, dict):
    choices = question.get("choices")
  choices = choices or ()
  if isinstance(choices, dict):  # {"label": […], "text": […]}
    labels = choices.get("label") or _LETTERS[: len(choices.get("text", ()))]
    return [str(label) for label in labels]
  if choices and all(isinstance(choice, dict) and "label" in choice for choice in choices):
    return [str(choice["label"]) for choice in choices]
  columns = sum(bool(_NUMBERED.match(key)) for key in row)
  columns += next(index for index, letter in enumerate([*_LETTERS, ""]) if letter not in row)
  return list(_LETTERS[: len(choices) or columns or number])


def _is_number(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
