"""Multiple choice, for encoders: each option is a row of its own behind its question (Devlin et al.
2019, section
4.4), and a model gives each row one score.

  config.task = {"name": "multiple_choice", "source":
                 "jsonl:train=race/train.jsonl,validation=race/dev.jsonl", "text": "{article}",
                 "options": "options", "option": "{question}", "placeholder": "_", "label_field":
                 "answer", "labels": ["A", "B", "C", "D"], "choices": 4, "vocabulary": "vocabulary"}

`data/supervised/sequences.py` defines the rows; their features are [choices, length].
`option_labels` [choices] is 2 for a right option, 1 for a wrong one and 0 where an example has no
such option; `label` is the first right one. `example_weights` is 1, but 0 for examples without a
label, which have -1 in the source. Training splits, whose names begin with `train`, lack examples
with an empty text or option; other splits have them.

`Task.examples` gives `record`, `text`, `options` (texts), `label` (the name of the right option, or
None), `right` (the places of all right ones) and `answers` (all right texts).
"""

from typing import Literal, Unpack

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Skip, field_value
from t5x_like.data.features import Feature, Features, labelled_rows
from t5x_like.data.supervised.labelled import ExampleRows, LabelledSource, build_task
from t5x_like.data.supervised.labels import UNLABELLED, is_unlabelled, label_number, number_labels
from t5x_like.data.supervised.sequences import layout_facts, rows_class, stack
from t5x_like.data.supervised.templates import Template, to_text
from t5x_like.data.supervised.too_long import TooLong, fit, truncated_share
from t5x_like.data.task import Task
from t5x_like.errors import UserError
from t5x_like.slots import Length, PositiveInt

ABSENT = 0
WRONG = 1
RIGHT = 2

# On the built-in corpus, for `:debug`.
BUILT_IN = {
  "source": "builtin",
  "vocabulary": "bytes",
  "text": "{text}",
  "options": "options",
  "option": "{option}",
}
BUILT_IN |= {"labels": ["short", "long"], "choices": 2}


def features(vocabulary, /, *, length: int, choices: int, architecture: str, **_) -> Features:
  """Return the features of the task with these arguments."""
  more = {"option_labels": Feature((choices,), "int32"), "label": Feature((), "int32")}
  return (
    labelled_rows(length, architecture, choices)
    | more
    | {"example_weights": Feature((), "float32")}
  )


def task(
  *,
  text: str,
  options: str | tuple[str, ...],
  option: str = "{option}",
  placeholder: str | None = None,
  label_field: str = "label",
  labels: list | tuple | None = None,
  answers: str | None = None,
  choices: PositiveInt = 4,
  fewer: bool = False,
  length: Length = 128,
  architecture: Literal["encoder", "decoder"] = "encoder",
  too_long: TooLong = "truncate",
  **records: Unpack[LabelledSource],
) -> Task:
  """Make the task.

  Args:
    text: the template of the text that the options answer.
    options: the field with the list of options, or a template for each of them.
    option: the template of an option's row, with `{option}` for the option itself.
    placeholder: another spelling of `{option}` in its text, such as ReCoRD's `@placeholder`; else
      the option follows.
    label_field: the field of the right option's name; unused with `answers`.
    labels: the options' names, in order; None for numbers from 0.
    answers: instead, the field with the list of the right options' texts, one or several.
    choices: number of options of an example.
    fewer: whether an example may have fewer options, or more, whose last ones are left out.
    length: length of a row, its special tokens included.
    architecture: the kind of model that the features are for.
    too_long: treatment of longer examples; truncation shortens the text, and then options, from
      their ends.
    records: see `Records`.

  Raises:
    UserError: unusable templates, another number of options or an unknown label; and as `labelled`.
  """
  source = LabelledSource(**records)
  vocabulary = vocabularies.load(source.vocabulary)
  listed = isinstance(options, str)
  about = Template(text, "text")
  each = Template(option, "option")
  if placeholder is None and "option" not in each.fields:
    raise UserError(
      f"config.task.option: found {option!r}, expected {{option}} in it, or a placeholder"
    )
  parts = [] if listed else [Template(one, "options") for one in options]
  if parts and len(parts) != choices:
    raise UserError(
      f"config.task.options: found {len(parts)} templates, expected {choices}, one for each choice"
    )
  names = number_labels(range(choices) if labels is None else labels, "labels")
  if len(names) != choices:
    raise UserError(
      f"config.task.labels: found {len(names)} names, expected {choices}, one for each choice"
    )

  def parsed(record, where):
    """Return (text, options, their rows, the right options or None without a label)."""
    found = (
      field_value(record, options, where)
      if listed
      else [part(record, where, source.allows_gaps) or "" for part in parts]
    )
    if not isinstance(found, list):
      raise UserError(
        f"{where}: found {type(found).__name__} in field {options!r}, expected a list of options"
      )
    if len(found) != choices and not fewer:
      raise UserError(
        f"{where}: found {len(found)} options, expected {choices}, config.task.choices; or set "
        "fewer=true"
      )
    found = [to_text(one, str(options), where) for one in found[:choices]]
    if placeholder is not None:
      whole = each(record, where, source.allows_gaps) or ""
      whole += f" {placeholder}" if whole and placeholder not in whole else ""
      written = [whole.replace(placeholder, one) for one in found]
    else:
      written = [each(record | {"option": one}, where, source.allows_gaps) or "" for one in found]
    if answers is not None:
      given = field_value(record, answers, where)
      right = np.isin(found, [to_text(one, answers, where) for one in given]) if given else None
    else:
      name = to_text(field_value(record, label_field, where), label_field, where)
      right = (
        None
        if is_unlabelled(name, names)
        else np.arange(len(found)) == label_number(name, names, label_field, where)
      )
      if right is not None and not right.any():
        raise UserError(
          f"{where}: found label {name!r} in field {label_field!r}, but only {len(found)} options"
        )
    return about(record, where, source.allows_gaps), found, written, right

  def example(record, where):
    told, _, written, right = parsed(record, where)
    ids = [np.asarray(vocabulary.encode(one), np.int32) for one in written]
    if told is None or not ids or not (source.allows_gaps or all(one.size for one in ids)):
      return Skip("empty text" if told is None else "empty option")
    kinds = np.full(choices, ABSENT, np.int8)
    lengths = np.zeros(choices, np.int32)
    kinds[: len(ids)] = WRONG if right is None else np.where(right, RIGHT, WRONG)
    lengths[: len(ids)] = [one.size for one in ids]
    told = np.asarray(vocabulary.encode(told), np.int32)
    sizes = {
      "option_lengths": lengths,
      "option_labels": kinds,
      "labelled": np.int8(right is not None),
    }
    return {"text": told, "options": np.concatenate(ids), **sizes}

  def view(record, where, _):
    told, found, _, right = parsed(record, where)
    places = [] if right is None else np.flatnonzero(right).tolist()
    texts = field_value(record, answers, where) if answers else [found[place] for place in places]
    label = list(names)[places[0]] if places else None
    return {
      "text": told,
      "options": found,
      "label": label,
      "right": places,
      "answers": list(texts or ()),
    }

  def rows(store):
    row = rows_class(architecture)(store, ("text", "options"), length)
    lengths_NC, kinds_NC = (
      np.reshape(store.arrays[f"option_{name}"], (-1, choices)) for name in ("lengths", "labels")
    )
    whole_N1 = (store.lengths["text"] + lengths_NC.max(axis=1))[:, None]
    used, sizes_n1 = fit(whole_N1, (row.room,), too_long, store.path, ("length",))

    def read(index_B):
      example_B = used[index_B]
      lengths_BC = lengths_NC[example_B]
      kinds_BC = kinds_NC[example_B]
      skip_BC = np.cumsum(lengths_BC, axis=1) - lengths_BC
      kept_BC = np.minimum(lengths_BC, row.room - 1)
      text_BC = np.minimum(store.lengths["text"][example_B][:, None], row.room - kept_BC)
      both_BC2 = np.stack([text_BC, kept_BC], axis=-1)
      return stack([row(example_B, both_BC2[:, c], skip_BC[:, c]) for c in range(choices)]) | {
        "option_labels": kinds_BC,
        "label": np.argmax(kinds_BC, axis=1),
        "example_weights": np.asarray(store.arrays["labelled"])[example_B]
        * (kinds_BC == RIGHT).any(axis=1),
      }

    return ExampleRows(used.size, read, used, view, truncated_share(whole_N1, used, sizes_n1))

  own = [field for field in each.fields if field != "option"]
  read_from = [options] if listed else [field for part in parts for field in part.fields]
  facts = {
    "text": text,
    "options": options if listed else list(options),
    "option": option,
    "placeholder": placeholder,
  }
  facts |= {
    "label_field": label_field,
    "labels": list(names),
    "answers": answers,
    "choices": choices,
    "fewer": fewer,
  }
  facts |= ({"unlabelled": None} if UNLABELLED in names else {}) | source.gap_facts
  decoder = {} if architecture == "encoder" else {"architecture": architecture}
  return build_task(
    "multiple_choice.v1",
    source,
    vocabulary,
    fields=(*about.fields, *own, *read_from, answers or label_field),
    facts=facts,
    streams={"text": False, "options": False},
    make_example=example,
    make_rows=rows,
    features=features(vocabulary, length=length, choices=choices, architecture=architecture),
    row_facts={"length": length, "too_long": too_long, **decoder}
    | layout_facts(architecture, vocabulary),
    classes=tuple(names),
  )
