"""Multiple choice: RACE, SWAG, CODAH, and the sets of zero- and few-shot evaluation, scored by accuracy."""

import dataclasses
import math
import pathlib
import re
import string
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from t5x_like.errors import UserError
from t5x_like.metrics.classification import Matches
from tools.score.benchmark import Benchmark, Example, one_file
from tools.score.files import File, first_of, read, table
from tools.score.labels import Invalid

_LETTERS = string.ascii_uppercase
_GOLD = ("gold", "answerKey", "correct_answer", "label", "answer", "0")
_CHOICES = ("choices", "options", "context_options", "endings")
_NUMBERED = re.compile(r"(?:choice|option|ending|sol|answer|correct_answer)[_ ]?([0-9A-E])$")
_WORDS = {"true": "true", "yes": "true", "false": "false", "no": "false"}


@dataclasses.dataclass(frozen=True)
class Choices:
  """The labels of one question's choices, in order, as its reference file spells them."""

  labels: tuple[str, ...]

  def index(self, value: Any) -> int:
    """The index of a choice given by its label, its letter or, if labels are not digits, its number from 0.

    A JSON number stands for a numeric label only if labels count from 0, because otherwise it is ambiguous. A list of
    numbers is a score for each choice; the first with the highest score is chosen.

    Raises:
      ValueError: the value is none of these.
    """
    if isinstance(value, list):
      return self._highest(value)
    word = str(value).strip()
    word = _WORDS.get(word.lower(), word) if self.labels == ("false", "true") else word
    digits = all(label.isdigit() for label in self.labels)
    if word in self.labels and (isinstance(value, (str, bool)) or not digits or self.labels[0] == "0"):
      return self.labels.index(word)
    if len(word) == 1 and word.upper() in _LETTERS[: len(self.labels)]:
      return _LETTERS.index(word.upper())
    if not digits and word.isdigit() and int(word) < len(self.labels):
      return int(word)
    hint = "" if isinstance(value, str) or not digits else ", as a text, or a letter"
    raise ValueError(f"found the choice {str(value)[:40]!r}, expected one of {', '.join(self.labels)}{hint}")

  def _highest(self, scores: list) -> int:
    if len(scores) != len(self.labels) or not all(
      isinstance(one, (int, float)) and not isinstance(one, bool) and not math.isnan(one) for one in scores
    ):
      raise ValueError(f"found {len(scores)} scores, expected {len(self.labels)} numbers, one for each choice")
    return int(np.argmax(scores))


def _prediction(value: Any, example: Example) -> int:
  return example.context.index(value)


def _benchmark(examples: Callable, invalid: str) -> Benchmark:
  return Benchmark(Matches(), examples, _prediction, invalid=invalid)


def _example(where: str, number: int, name: Any, gold: Any, labels: tuple[str, ...], **rest) -> Example:
  choices = Choices(labels)
  try:
    index = choices.index(gold)
  except ValueError as error:
    raise UserError(f"{where}: {error}") from error
  return Example(str(number), index, () if name is None else (str(name),), choices, **rest)


def _rows(paths) -> tuple[File, list[tuple[int, dict]]]:
  """Rows of a file of questions, with the labels of a second file (.lst: PIQA, SIQA, WinoGrande) if given."""
  paths = sorted(paths, key=lambda path: path.removesuffix(".gz").endswith(".lst"))
  file = read(paths[0])
  lines = file.lines()
  mmlu = ("question", "A", "B", "C", "D", "answer") if file.suffix == ".csv" else ("0",)
  rows = table(file, mmlu, header=("label", "answer", "answerKey", "question"))
  if len(paths) == 1:
    return file, rows
  lines = read(one_file(paths[1:])).lines()
  if len(lines) != len(rows):
    raise UserError(f"{paths[1]}: found {len(lines)} labels, expected {len(rows)}, one for each row of {paths[0]}")
  return file, [(line, {**row, "gold": label.strip()}) for (line, row), label in zip(rows, lines)]


def _options(row: dict) -> list[str] | None:
  """The labels of a row's choices if it names them, else letters; None without choices."""
  question = row.get("question")
  choices = first_of(row, _CHOICES) or (question.get("choices") if isinstance(question, dict) else None)
  if isinstance(choices, dict):  # {"label": […], "text": […]}
    return list(map(str, choices.get("label") or _LETTERS[: len(choices.get("text", ()))]))
  if choices and isinstance(choices, list):
    labelled = all(isinstance(one, dict) and "label" in one for one in choices)
    return [str(one["label"]) for one in choices] if labelled else list(_LETTERS[: len(choices)])
  numbered = [key for key in row if _NUMBERED.match(key)] or [key for key in row if key in tuple("ABCDE")]
  return list(_LETTERS[: len(numbered)]) or None


def _labels(gold: Any, options: list[str] | None, choices: int, first: str) -> tuple[str, ...]:
  """The labels of which the gold one is: Booleans, numbers from 0, digits from `first`, or the options' labels."""
  options = options or list(_LETTERS[:choices])
  if isinstance(gold, bool) or str(gold).lower() in _WORDS:
    return ("false", "true")
  if str(gold).isdigit() and str(gold) not in options:
    start = 0 if isinstance(gold, int) and first != "1" else int(first)
    return tuple(str(start + i) for i in range(len(options)))
  return tuple(options)


def _set(
  choices: int, first: Literal["0", "1"] = "0", *, labels: tuple[str, ...] = (), group: str | None = None
) -> Callable[..., Benchmark]:
  """A set of questions: rows with a gold choice under any of _GOLD.

  Args:
    choices: their number, if the files do not show it.
    first: the label of the first choice, if labels are digits.
    labels: of every question, if they are all the same.
    group: the column that names subsets.
  """

  def examples(paths, split: str | None) -> list[Example]:
    file, rows = _rows(paths)
    if split is not None:
      splits = {str(row.get("split")) for _, row in rows}
      rows = [(line, row) for line, row in rows if row.get("split") == split]
      if not rows:
        raise UserError(f"--split={split}: {file.path} has the splits {', '.join(sorted(splits))}")
    found = []
    for line, row in rows:
      gold = first_of(row, _GOLD)
      if gold is None:
        raise UserError(
          f"{file.path}, line {line}: no gold choice; found {', '.join(row)}, expected one of {', '.join(_GOLD[:-1])}"
        )
      start = "0" if isinstance(row.get("gold"), int) else first
      spelled = labels or _labels(gold, _options(row), choices, start)
      name = first_of(row, ("id", "idx", "ind", "qID"))
      of_group = str(row[group]) if group and group in row else None
      found.append(_example(f"{file.path}, line {line}", len(found), name, gold, spelled, group=of_group))
    return found

  def make(invalid: Invalid = "refuse", split: str | None = None) -> Benchmark:
    return _benchmark(lambda paths: examples(paths, split), invalid)

  return make


def _race_examples(paths) -> list[Example]:
  """RACE's folder of texts, or its texts as JSON or JSONL. A text's questions are `high19088.txt-0`, `…-1`, …"""
  path = pathlib.Path(one_file(paths))
  names = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
  if not names:
    raise UserError(f"{path}: holds no .txt files, expected RACE's texts, such as high/19088.txt")
  found: list[Example] = []
  seen: dict[str, int] = {}
  for name in names:
    for line, row in table(dataclasses.replace(read(str(name)), suffix=".json" if path.is_dir() else name.suffix)):
      text = str(first_of(row, ("id", "example_id")) or name.name)
      answers = first_of(row, ("answers", "answer"))
      if not isinstance(answers, (str, list)):
        raise UserError(f"{name}, line {line}: found {', '.join(row)}, expected id, answers and options")
      for gold in answers:
        place = seen[text] = seen.get(text, -1) + 1
        group = next((level for level in ("middle", "high") if text.startswith(level)), None)
        one = _example(f"{name}, line {line}", len(found), f"{text}-{place}", gold, tuple("ABCD"), group=group)
        found.append(dataclasses.replace(one, id=one.aliases[0], aliases=(one.id,)))
  return found


def _swag_examples(paths) -> list[Example]:
  """SWAG's CSV, or JSONL with the same columns: `label` is 0 to 3."""
  file = read(one_file(paths))
  return [
    _example(f"{file.path}, line {line}", number, None, _required(file, line, row, "label"), tuple("0123"))
    for number, (line, row) in enumerate(table(file))
  ]


def _codah_examples(paths) -> list[Example]:
  """CODAH's TSV without a header: category, prompt, four endings, label 0 to 3; or JSONL with `label` or `answer`."""
  file = read(one_file(paths))
  columns = ("category", "prompt", "0", "1", "2", "3", "label")
  return [
    _example(f"{file.path}, line {line}", number, row.get("id"), _required(file, line, row, "label"), tuple("0123"))
    for number, (line, row) in enumerate(table(file, columns, header=("label",)))
  ]


def _required(file: File, line: int, row: dict, name: str) -> Any:
  if row.get(name) is None:
    raise UserError(f"{file.path}, line {line}: no {name}; found {', '.join(row)}")
  return row[name]


def _plain(examples: Callable) -> Callable[..., Benchmark]:
  def make(invalid: Invalid = "refuse") -> Benchmark:
    return _benchmark(examples, invalid)

  return make


BENCHMARKS = {
  "race": _plain(_race_examples),
  "swag": _plain(_swag_examples),
  "codah": _plain(_codah_examples),
  "arc": _set(4),
  "piqa": _set(2),
  "siqa": _set(3, "1"),
  "openbookqa": _set(4),
  "csqa": _set(5),
  "winogrande": _set(2, "1"),
  "winograd": _set(2),
  "hellaswag": _set(4),
  "copa": _set(2),
  "boolq": _set(2, labels=("false", "true")),
  "mmlu": _set(4, group="subject"),
}
