"""Multiple choice: each option is a separate row after its question, and gets one score.

Devlin et al. 2019, section 4.4.

  config.task = {"name": "multiple_choice", "source":
                 "jsonl:train=race/train.jsonl,validation=race/dev.jsonl", "text": "{article}",
                 "options": "options", "option": "{question}", "placeholder": "_", "label_field":
                 "answer", "labels": ["A", "B", "C", "D"], "choices": 4, "vocabulary": "vocabulary"}

`data/supervised/sequences.py` defines the rows; their features are [choices, length].
`option_labels` [choices] is 2 for a right option, 1 for a wrong one and 0 where an example has no
such option; `label` is the first right one. `example_weights` is 0 for examples without a label,
which have -1 in the source, and otherwise 1. Examples with an empty text or option are left out of
training splits, whose names begin with `train`, but not of other splits.

`Task.examples` gives `record`, `text`, `options` (texts), `label` (the name of the right option, or
None), `right` (the positions of all correct ones) and `answers` (all correct texts).
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Record, Skip, field_value
from t5x_like.data.features import Feature, Features, labelled_rows
from t5x_like.data.supervised.example_store import Example, ExampleStore
from t5x_like.data.supervised.labelled import ExampleRows, LabelledArguments
from t5x_like.data.supervised.labels import is_unlabelled, label_number, number_labels
from t5x_like.data.supervised.sequences import layout_facts, rows_class, stack
from t5x_like.data.supervised.templates import Template, to_text
from t5x_like.data.supervised.too_long import TooLong, fit, truncated_share
from t5x_like.data.task import Task, rows_only
from t5x_like.errors import UserError
from t5x_like.slots import Length, PositiveInt
from t5x_like.vocabularies import Vocabulary

ABSENT = 0
WRONG = 1
RIGHT = 2

# The arguments of the task on the built-in corpus, for `:debug`.
BUILT_IN = {
  "source": "builtin",
  "vocabulary": "bytes",
  "text": "{text}",
  "options": "options",
  "option": "{option}",
  "labels": ["short", "long"],
  "choices": 2,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(LabelledArguments):
  """The arguments of multiple choice.

  Attributes:
    text: the template of the text that the options answer.
    options: the field with the list of options, or a template for each of them.
    option: the template of an option's row, with `{option}` for the option itself.
    placeholder: a text, such as ReCoRD's `@placeholder`, that is replaced by the option, instead of
      `{option}`; an option follows a text without it.
    label_field: the field of the right option's name; unused with `answers`.
    labels: the options' names, in order; None for numbers from 0.
    answers: instead, the field with the list of the right options' texts, one or several.
    choices: number of options of an example.
    fewer: whether an example may have fewer options, or more, whose last ones are left out.
    length: length of a row, its special tokens included.
    architecture: the kind of model that the features are for.
    too_long: treatment of longer examples; truncation shortens the text, and then options, from
      their ends.
  """

  text: str
  options: str | tuple[str, ...]
  option: str = "{option}"
  placeholder: str | None = None
  label_field: str = "label"
  labels: list | tuple | None = None
  answers: str | None = None
  choices: PositiveInt = 4
  fewer: bool = False
  length: Length = rows_only(default=128)
  architecture: Literal["encoder", "decoder"] = rows_only(default="encoder")
  too_long: TooLong = rows_only(default="truncate")

  def features(self, vocabulary: Vocabulary) -> Features:
    features = labelled_rows(self.length, self.architecture, self.choices)
    features["option_labels"] = Feature((self.choices,), "int32")
    features["label"] = Feature((), "int32")
    features["example_weights"] = Feature((), "float32")
    return features

  def build(self) -> Task:
    """Prepare the examples and return the task.

    Raises:
      UserError: unusable templates, another number of options or an unknown label; and as
        `LabelledArguments.build_task`.
    """
    vocabulary = vocabularies.load(self.vocabulary)
    questions = _Questions(
      text=Template(self.text, "text"),
      options=_parse_options(self.options, self.choices),
      option=Template(self.option, "option"),
      placeholder=self.placeholder,
      label_field=self.label_field,
      label_numbers=_number_options(self.labels, self.choices),
      answers=self.answers,
      choices=self.choices,
      allows_other_counts=self.fewer,
      allows_gaps=self.allows_gaps,
      vocabulary=vocabulary,
    )
    if self.placeholder is None and "option" not in questions.option.fields:
      raise UserError(
        f"config.task.option: found {self.option!r}, expected {{option}} in it, or a placeholder"
      )

    def make_rows(store: ExampleStore) -> ExampleRows:
      rows = _OptionRows(store, self)
      return ExampleRows(
        rows.used.size, rows.read, rows.used, questions.view, rows.truncated_share()
      )

    return self.build_task(
      "multiple_choice.v1",
      vocabulary,
      fields=questions.fields(),
      streams={"text": False, "options": False},
      make_example=questions.make_example,
      make_rows=make_rows,
      row_facts=layout_facts(self.architecture, vocabulary),
      classes=tuple(questions.label_numbers),
    )


def _parse_options(options: str | tuple[str, ...], choices: int) -> str | list[Template]:
  """Return the field of the options, or their templates."""
  if isinstance(options, str):
    return options
  templates = [Template(option, "options") for option in options]
  if templates and len(templates) != choices:
    raise UserError(
      f"config.task.options: found {len(templates)} templates, expected {choices}, one for each "
      "choice"
    )
  return templates


def _number_options(labels: list | tuple | None, choices: int) -> dict[str, int]:
  """Return the position of each option by its name."""
  numbers = number_labels(range(choices) if labels is None else labels, "labels")
  if len(numbers) != choices:
    raise UserError(
      f"config.task.labels: found {len(numbers)} names, expected {choices}, one for each choice"
    )
  return numbers


class _Question(NamedTuple):
  """A record with its options.

  Attributes:
    text: the text that the options answer; None if it is empty.
    options: the options.
    option_texts: the text of each option's row.
    is_right: whether each option is right, bool [options]; None without a label.
  """

  text: str | None
  options: list[str]
  option_texts: list[str]
  is_right: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class _Questions:
  """Questions from records; for the attributes see `Arguments`.

  Attributes:
    options: the field of the options, or their templates.
    label_numbers: the position of each option by its name.
    allows_other_counts: whether a question may have fewer or more options.
    allows_gaps: whether texts may lack a field.
  """

  text: Template
  options: str | list[Template]
  option: Template
  placeholder: str | None
  label_field: str
  label_numbers: dict[str, int]
  answers: str | None
  choices: int
  allows_other_counts: bool
  allows_gaps: bool
  vocabulary: Vocabulary

  def fields(self) -> tuple[str, ...]:
    """Return the fields of a record in use."""
    fields = [*self.text.fields]
    fields += [field for field in self.option.fields if field != "option"]
    if isinstance(self.options, str):
      fields.append(self.options)
    else:
      for template in self.options:
        fields += template.fields
    fields.append(self.answers or self.label_field)
    return tuple(fields)

  def make_example(self, record: Record, where: str) -> Example | Skip:
    """Return the ids of a question and its options, or the reason to skip it."""
    question = self._parse(record, where)
    if question.text is None:
      return Skip("empty text")
    ids = [np.asarray(self.vocabulary.encode(text), np.int32) for text in question.option_texts]
    has_empty = any(not part.size for part in ids)
    if not ids or (has_empty and not self.allows_gaps):
      return Skip("empty option")
    labels = np.full(self.choices, ABSENT, np.int8)
    labels[: len(ids)] = WRONG
    if question.is_right is not None:
      labels[: len(ids)] = np.where(question.is_right, RIGHT, WRONG)
    lengths = np.zeros(self.choices, np.int32)
    lengths[: len(ids)] = [part.size for part in ids]
    return {
      "text": np.asarray(self.vocabulary.encode(question.text), np.int32),
      "options": np.concatenate(ids),
      "option_lengths": lengths,
      "option_labels": labels,
      "labelled": np.int8(question.is_right is not None),
    }

  def view(self, record: Record, where: str, _: int) -> dict[str, Any]:
    """Return the texts of a question; see `Task.examples`."""
    question = self._parse(record, where)
    right_positions = []
    if question.is_right is not None:
      right_positions = np.flatnonzero(question.is_right).tolist()
    if self.answers:
      answers = field_value(record, self.answers, where)
    else:
      answers = [question.options[position] for position in right_positions]
    return {
      "text": question.text,
      "options": question.options,
      "label": list(self.label_numbers)[right_positions[0]] if right_positions else None,
      "right": right_positions,
      "answers": list(answers or ()),
    }

  def _parse(self, record: Record, where: str) -> _Question:
    """Return the question of a record."""
    options = self._read_options(record, where)
    return _Question(
      option_texts=self._option_texts(record, options, where),
      is_right=self._are_right(record, options, where),
      text=self.text(record, where, self.allows_gaps),
      options=options,
    )

  def _read_options(self, record: Record, where: str) -> list[str]:
    """Return the options of a record; raise UserError for another number of them."""
    if isinstance(self.options, str):
      options = field_value(record, self.options, where)
      if not isinstance(options, list):
        raise UserError(
          f"{where}: found {type(options).__name__} in field {self.options!r}, expected a list of "
          "options"
        )
    else:
      options = [template(record, where, self.allows_gaps) or "" for template in self.options]
    if len(options) != self.choices and not self.allows_other_counts:
      raise UserError(
        f"{where}: found {len(options)} options, expected {self.choices}, config.task.choices; or "
        "set fewer=true"
      )
    return [to_text(option, str(self.options), where) for option in options[: self.choices]]

  def _option_texts(self, record: Record, options: list[str], where: str) -> list[str]:
    """Return the text of each option's row."""
    if self.placeholder is None:
      texts = []
      for option in options:
        texts.append(self.option(record | {"option": option}, where, self.allows_gaps) or "")
      return texts
    text = self.option(record, where, self.allows_gaps) or ""
    if text and self.placeholder not in text:
      text += f" {self.placeholder}"
    return [text.replace(self.placeholder, option) for option in options]

  def _are_right(self, record: Record, options: list[str], where: str) -> np.ndarray | None:
    """Return whether each option is right, bool [options]; None without a label."""
    if self.answers is not None:
      answers = field_value(record, self.answers, where)
      if not answers:
        return None
      return np.isin(options, [to_text(answer, self.answers, where) for answer in answers])
    label = to_text(field_value(record, self.label_field, where), self.label_field, where)
    if is_unlabelled(label, self.label_numbers):
      return None
    number = label_number(label, self.label_numbers, self.label_field, where)
    is_right = np.arange(len(options)) == number
    if not is_right.any():
      raise UserError(
        f"{where}: found label {label!r} in field {self.label_field!r}, but only {len(options)} "
        "options"
      )
    return is_right


class _OptionRows:
  """The rows of questions, one for each option.

  Attributes:
    used: the examples in use.
  """

  def __init__(self, store: ExampleStore, arguments: Arguments):
    self._store = store
    self._row = rows_class(arguments.architecture)(store, ("text", "options"), arguments.length)
    choices = arguments.choices
    self._lengths_NC = np.reshape(store.arrays["option_lengths"], (-1, choices))
    self._labels_NC = np.reshape(store.arrays["option_labels"], (-1, choices))
    self._total_N1 = (store.lengths["text"] + self._lengths_NC.max(axis=1))[:, None]
    self.used, self._total_n1 = fit(
      self._total_N1, (self._row.room,), arguments.too_long, store.path, ("length",)
    )

  def truncated_share(self) -> float:
    """Return the share of the used examples that are shortened."""
    return truncated_share(self._total_N1, self.used, self._total_n1)

  def read(self, index_B: np.ndarray) -> dict[str, np.ndarray]:
    """Return the features of examples, by their positions in `used`."""
    example_B = self.used[index_B]
    lengths_BC = self._lengths_NC[example_B]
    labels_BC = self._labels_NC[example_B]
    skip_BC = np.cumsum(lengths_BC, axis=1) - lengths_BC
    option_BC = np.minimum(lengths_BC, self._row.room - 1)
    text_B1 = self._store.lengths["text"][example_B][:, None]
    text_BC = np.minimum(text_B1, self._row.room - option_BC)
    lengths_BC2 = np.stack([text_BC, option_BC], axis=-1)
    option_rows = []
    for choice in range(lengths_BC.shape[1]):
      option_rows.append(self._row(example_B, lengths_BC2[:, choice], skip_BC[:, choice]))
    rows = stack(option_rows)
    is_labelled_B = np.asarray(self._store.arrays["labelled"])[example_B]
    rows["option_labels"] = labels_BC
    rows["label"] = np.argmax(labels_BC, axis=1)
    rows["example_weights"] = is_labelled_B * (labels_BC == RIGHT).any(axis=1)
    return rows
