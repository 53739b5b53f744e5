"""The values of a recipe that follow from a table of labelled texts.

They are its columns, labels, splits and number of steps. A `text`, `label_field` or `labels` of
"auto" is open, and a `total_steps` of None. The table is read once, and all of its problems are
reported in one message.
"""

import collections
import dataclasses
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from t5x_like import slots
from t5x_like.corpora import sources, tables
from t5x_like.corpora.sources import Skip
from t5x_like.data import open_values, tasks
from t5x_like.data.supervised.labels import UNLABELLED
from t5x_like.data.supervised.templates import Template, to_text
from t5x_like.errors import UserError
from t5x_like.files.checked_json import json_type_name

OPEN = "auto"
TRAIN = "train"
VALIDATION = "validation"
_TASK = "classification"
_KEYS = ("text", "label_field", "labels")
# One record in N is held out, by the first N that gives a validation split of some size.
_HELD_OUT_PERIODS = (10, 5, 3, 2)
_MIN_VALIDATION_SHARE = 0.05  # the smallest split for validation, as a share of train
_MAX_SHOWN = 5  # labels or rows in a message
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")


def is_open(config: ConfigDict) -> bool:
  """Return whether a config leaves values open that its table gives."""
  return config.total_steps is None or any(config.task.get(key) == OPEN for key in _KEYS)


def complete(config: ConfigDict) -> tuple[ConfigDict, list[str]]:
  """Return the config with the values that its table gives, and lines that describe the table.

  Raises:
    UserError: there is no table, or the problems of the table, all in one message.
  """
  table = _Table(config.task.to_dict())
  scan = table.scan()
  config = ConfigDict(config.to_dict())
  with config.unlocked(), config.ignore_type():
    config.task.update(table.arguments(scan))
    if scan.labels is None:
      _evaluate_numbers(config)
  steps = math.ceil(config.epochs * scan.examples[TRAIN] / config.batch_size)
  config = open_values.with_steps(config, max(1, steps))
  return config, [*table.notes, *scan.notes(config)]


def _evaluate_numbers(config: ConfigDict) -> None:
  """Set a config to a head with one output and to selection by Pearson's correlation, in place."""
  if "labels" not in config.model.head:
    config.model.head.labels = 1
  for values in config.evals.values():
    if values.get("name") == _TASK and "scores" in values:
      del values["scores"]
  if config.selection:
    group, _, _ = config.selection.metric.rpartition("/")
    config.selection.metric = f"{group}/pearson"


@dataclasses.dataclass
class _Scan:
  """The content of a table.

  Attributes:
    labels: the names of the classes in order; None for numbers.
    examples: the number of rows with a text and a label, by split.
    skipped: the number of other rows, by split and reason.
  """

  labels: list[str] | None
  examples: collections.Counter
  skipped: dict[str, collections.Counter]

  def notes(self, config: ConfigDict) -> list[str]:
    sizes = ", ".join(f"{self.examples[split]:,} of {split}" for split in (TRAIN, VALIDATION))
    target = "numbers (a regression)"
    if self.labels is not None:
      target = f"{len(self.labels)} labels: {_join_names(self.labels)}"
    lines = [f"  {sizes}; {target}; {config.total_steps:,} steps of {config.batch_size}"]
    for split, reasons in self.skipped.items():
      for reason, number in sorted(reasons.items()):
        lines.append(f"  left out of {split}: {number:,} with {reason}")
    return lines


class _Table:
  """The table of a task, whose columns are known.

  Args:
    task: the arguments of `config.task`.

  Attributes:
    notes: lines that describe the way it is read.

  Raises:
    UserError: there is no table, or its columns are unknown.
  """

  def __init__(self, task: Mapping[str, Any]):
    arguments_class = slots.find("config.task.name", _TASK, tasks, "Arguments")
    self._task = slots.defaults(arguments_class) | dict(task)
    self._task["label_field"] = str(self._task["label_field"])  # a number, where there is no header
    path = self._task.get("source")
    if path is None:
      raise UserError(
        "config.task.source: found None, expected your table of texts and labels, such as "
        "--config.task.source=reviews.csv or "
        "--config.task.source=train=train.csv,validation=dev.csv"
      )
    self._source = tables.source_for_path(path)
    self._data_dir = self._task.get("data_dir")
    source = sources.open_source(self._source, fields=self._named_fields(), data_dir=self._data_dir)
    sources.check_split(source, TRAIN)
    self._find_columns(source)
    self.notes: list[str] = []
    if VALIDATION not in source.splits:
      number = self._hold_out()
      self.notes.append(
        f"  found no split 'validation': one row in {number}, chosen by a hash of its content, is "
        "held out of train"
      )
    self._open_source = self._open(self._source)
    pair = f" and {self._task['pair']}" if self._task.get("pair") else ""
    columns = f"text {self._task['text']}{pair}, label {self._label!r}"
    self.notes.insert(0, f"data: {self._source}: {columns}")

  def _named_fields(self) -> tuple[str, ...]:
    """Return the columns that the task names, if it names all."""
    if OPEN in (self._task["text"], self._task["label_field"]):
      return ()
    return _columns_in_use(self._templates(), self._task["label_field"])

  def _templates(self) -> list[Template]:
    """Return the templates of the text and, if there is one, its pair."""
    return [Template(self._task[key], key) for key in ("text", "pair") if self._task.get(key)]

  def _find_columns(self, source) -> None:
    """Fill in the columns of texts and labels, by their names where the task leaves them open."""
    columns = _columns(source)
    label = self._task["label_field"]
    if label == OPEN:
      label = tables.guess_label(columns)
    problems = []
    if label is None:
      problems.append("no column for the label; name it with --config.task.label_field=COLUMN")
    if self._task["text"] == OPEN:
      texts = tables.guess_texts(columns, label)
      if not texts:
        problems.append("no column for the text; name it with --config.task.text='{COLUMN}'")
      for key, column in zip(("text", "pair"), texts):
        self._task[key] = "{" + column + "}"
    if problems:
      names = ", ".join(repr(slots.format_value(name, "")) for name in columns[:12])
      if len(columns) > 12:
        names += ", …"
      advice = ""
      if self._source.startswith(("csv:", "tsv:")):
        advice = (
          "; if that is a row and no header, number the columns from 0, --config.task.text='{0}' "
          "--config.task.label_field=1"
        )
      raise UserError(
        f"{self._source}: found the columns {names}, {', and '.join(problems)}{advice}"
      )
    self._label = label
    self._task["label_field"] = label
    self._texts = self._templates()
    self._fields = _columns_in_use(self._texts, label)

  def _open(self, source: str):
    return sources.open_source(source, fields=self._fields, data_dir=self._data_dir)

  def _hold_out(self) -> int:
    """Take one row in N out of train as the validation split; return N.

    Raises:
      UserError: there are too few rows.
    """
    for number in _HELD_OUT_PERIODS:
      source = f"held_out:{number}@{self._source}"
      opened = self._open(source)
      try:
        train = sum(1 for _ in opened.records(TRAIN))
        validation = sum(1 for _ in opened.records(VALIDATION))
      except UserError:  # reported by the scan
        train = 1
        validation = 1
      if train and validation >= _MIN_VALIDATION_SHARE * train:
        self._source = source
        return number
    raise UserError(
      f"{self._source}: found too few different rows to hold some out for validation, expected "
      "more; or name another file, --config.task.source=train=FILE,validation=FILE"
    )

  def scan(self) -> _Scan:
    """Read the labels of both splits; raise UserError with all problems."""
    problems: list[str] = []
    counts = {split: collections.Counter() for split in (TRAIN, VALIDATION)}
    first_locations = {split: {} for split in counts}  # the first row of each label
    skipped = {split: collections.Counter() for split in counts}
    for split in counts:
      try:
        for where, label in self._labels(split, skipped[split], problems):
          counts[split][label] += 1
          first_locations[split].setdefault(label, where)
      except UserError as error:
        problems.append(str(error))
    in_train = list(counts[TRAIN])
    if self._source.startswith("held_out:"):
      in_train += [label for label in counts[VALIDATION] if label not in counts[TRAIN]]
    labels = self._task["labels"]
    if labels == OPEN:
      labels = None if _are_measures(in_train) else _sort_labels(in_train)
      if labels:
        problems += _spelling_problems(labels, counts[TRAIN] + counts[VALIDATION])
    elif labels is not None:
      labels = [str(label) for label in labels]
      problems += _unknown_problems(first_locations[TRAIN], labels, "config.task.labels")
    if not in_train:
      problems.append("found no row of train with a text and a label")
    elif len(in_train) == 1 and labels is not None:
      problems.append(
        f"found one label, {in_train[0]!r}, in all rows of train, expected two or more"
      )
    if labels is None:
      problems += _number_problems(first_locations)
    elif in_train:
      problems += _unknown_problems(
        first_locations[VALIDATION], [*labels, UNLABELLED], "the labels of train"
      )
    problems = list(dict.fromkeys(problems))  # one file may hold both splits
    if len(problems) > 1:
      numbered = "; ".join(f"({number}) {problem}" for number, problem in enumerate(problems, 1))
      raise UserError(f"{self._source}: {len(problems)} problems: {numbered}")
    if problems:
      raise UserError(f"{self._source}: {problems[0]}")
    examples = collections.Counter({split: counter.total() for split, counter in counts.items()})
    return _Scan(labels, examples, skipped)

  def _labels(
    self, split: str, skipped: collections.Counter, problems: list[str]
  ) -> Iterator[tuple[str, str]]:
    """Yield (where, label) of the rows with a text and a label.

    Other rows are counted in `skipped`; the unusable ones are added to `problems`.
    """
    unusable: list[str] = []
    for where, record in self._open_source.records(split):
      if isinstance(record, Skip):
        skipped[f"a {record.reason}"] += 1
        continue
      try:
        label = sources.field_value(record, self._label, where)
        if isinstance(label, list | dict):
          raise UserError(
            f"{where}: found {json_type_name(label)} in column {self._label!r}, expected one label "
            "for each text"
          )
        label = to_text(label, self._label, where)
        texts = [template(record, where) for template in self._texts]
      except UserError as error:
        unusable.append(str(error))
        continue
      if not label:
        skipped["an empty label"] += 1
      elif None in texts and split == TRAIN:
        skipped["an empty text"] += 1
      else:
        yield where, label
    if unusable:
      problem = unusable[0]
      if len(unusable) > 1:
        problem += f" (and {_rows(len(unusable) - 1)} more of {split})"
      problems.append(problem)

  def arguments(self, scan: _Scan) -> dict[str, Any]:
    """Return the arguments of the task that are known now."""
    arguments = {
      "source": self._source,
      "text": self._task["text"],
      "label_field": self._label,
      "labels": scan.labels,
    }
    if self._task.get("pair"):
      arguments["pair"] = self._task["pair"]
    return arguments


def _columns_in_use(templates: list[Template], label: str) -> tuple[str, ...]:
  """Return the columns that templates read, and the label's, each once."""
  fields = [field for template in templates for field in template.fields]
  return tuple(dict.fromkeys([*fields, label]))


def _columns(source) -> list[str]:
  """Return the columns of the first row of train."""
  for _, record in source.records(TRAIN):
    if not isinstance(record, Skip):
      return list(record)
  raise UserError(
    f"source {source.name}: found no row in train, expected texts and labels below a header"
  )


def _are_measures(labels: list[str]) -> bool:
  """Return whether labels are numbers, not all of them whole: the values of a regression."""
  values = [_number(label) for label in labels]
  return bool(values) and None not in values and any(value != int(value) for value in values)


def _number(label: str) -> float | None:
  """Return the finite number that a label spells, or None."""
  try:
    value = float(label)
  except ValueError:
    return None
  return value if math.isfinite(value) else None


def _sort_labels(labels: list[str]) -> list[str]:
  """Sort labels by value if all are whole numbers, and otherwise as text."""
  if all(_WHOLE_NUMBER.fullmatch(label) for label in labels):
    return sorted(labels, key=lambda label: (int(label), label))
  return sorted(labels)


def _spelling_problems(labels: list[str], rows: collections.Counter) -> list[str]:
  """Describe labels that differ only in spelling.

  Capitals, spaces, the form of accents and the digits of a number are spelling.
  """
  spellings = collections.defaultdict(list)
  for label in labels:
    number = _number(label)
    folded = " ".join(unicodedata.normalize("NFKC", label).casefold().split())
    spellings[folded if number is None else number].append(label)
  problems = []
  for variants in spellings.values():
    if len(variants) > 1:
      labels_shown = " and ".join(f"{label!r} ({_rows(rows[label])})" for label in variants)
      problems.append(
        f"found one label in {len(variants)} spellings, {labels_shown}, expected one spelling"
      )
  if problems:
    problems[-1] += ", or all labels as they are in --config.task.labels='[…]'"
  return problems


def _unknown_problems(
  first_locations: Mapping[str, str], labels: list[str], known_as: str
) -> list[str]:
  """Describe the labels, each with its first row, that are not among the known ones."""
  names = _join_names([label for label in labels if label != UNLABELLED])
  problems = []
  for label, where in first_locations.items():
    if label not in labels:
      problems.append(f"{where}: found the label {label!r}, expected one of {known_as}, {names}")
  num_hidden = len(problems) - _MAX_SHOWN
  if num_hidden > 0:
    problems = [*problems[:_MAX_SHOWN], f"{num_hidden:,} more such labels"]
  return problems


def _number_problems(first_locations: Mapping[str, Mapping[str, str]]) -> list[str]:
  """Describe labels that are no numbers, for a regression, by split."""
  problems = []
  for labels in first_locations.values():
    problems_of_split = []
    for label, where in labels.items():
      if _number(label) is None:
        problems_of_split.append(f"{where}: found the label {label!r}, expected a number")
    problems += problems_of_split[:_MAX_SHOWN]
  return problems


def _rows(number: int) -> str:
  return "1 row" if number == 1 else f"{number:,} rows"


def _join_names(names: list[str]) -> str:
  names_shown = ", ".join(slots.format_value(name, "") for name in names[:_MAX_SHOWN])
  return f"{names_shown}, …" if len(names) > _MAX_SHOWN else names_shown
