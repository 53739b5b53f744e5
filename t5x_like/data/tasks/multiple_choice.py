"""Multiple choice, for encoders: each option is a row of its own behind what it answers (Devlin et al. 2019, section
4.4), and a model gives each row one score.

  config.task = {"name": "multiple_choice", "source": "jsonl:train=race/train.jsonl,validation=race/dev.jsonl",
                 "text": "{article}", "options": "options", "option": "{question} {option}",
                 "label_field": "answer", "labels": ["A", "B", "C", "D"], "choices": 4, "vocabulary": "vocabulary"}

A row is [CLS] text [SEP] option [SEP], types 0 and 1. The features of the rows are [choices, length]. `option_labels`
[choices] is 2 for a right option, 1 for a wrong one and 0 where an example has no such option; `label` is the first
right one. `example_weights` is 1, but 0 for examples without a label, which have -1 in the source.

For a decoder, a row is start text delimiter option extract, see `data/supervised/delimited.py`.

`Task.examples` gives `record`, `text`, `options` (texts), `label` (the name of the right option, or None) and `answers`
(all right texts).
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Record, Skip, value
from t5x_like.data.features import Feature, Features, rows_of
from t5x_like.data.supervised import encoder_inputs, example_store, records
from t5x_like.data.supervised.delimited import Delimited, stacked
from t5x_like.data.supervised.example_store import Example
from t5x_like.data.supervised.labels import number_of, numbered
from t5x_like.data.supervised.templates import Template, as_text
from t5x_like.data.supervised.too_long import TooLong, fit
from t5x_like.data.task import Task, digest
from t5x_like.errors import UserError
from t5x_like.slots import Length, Positive
from t5x_like.store.reader import Verify

UNLABELLED = "-1"
ABSENT, WRONG, RIGHT = 0, 1, 2


# On the built-in corpus, for `:debug`.
BUILT_IN = {
  "source": "builtin",
  "vocabulary": "bytes",
  "text": "{text}",
  "options": "options",
  "option": "{option}",
  "labels": ["short", "long"],
  "choices": 2,
}


def features(vocabulary, /, *, length: int, choices: int, architecture: str, **_) -> Features:
  """Return the features of the task with these arguments."""
  more = {"option_labels": Feature((choices,), "int32"), "label": Feature((), "int32")}
  return rows_of(length, architecture, choices) | more | {"example_weights": Feature((), "float32")}


def task(
  *,
  source: str,
  split: str,
  text: str,
  options: str | tuple[str, ...],
  option: str = "{option}",
  placeholder: str | None = None,
  label_field: str = "label",
  labels: list | tuple | None = None,
  answers: str | None = None,
  choices: Positive = 4,
  fewer: bool = False,
  vocabulary: str = "bytes",
  length: Length = 128,
  architecture: Literal["encoder", "decoder"] = "encoder",
  too_long: TooLong = "truncate",
  cache: str = "data/prepared",
  data_dir: str | None = None,
  label: str | None = None,
  verify: Verify = "auto",
) -> Task:
  """Make the task.

  Args:
    source, split, vocabulary, cache, data_dir, verify: see `text_to_text`.
    text: the template of the text that the options answer.
    options: the field with the list of options, or a template for each of them.
    option: the template of an option's row, with `{option}` for the option itself.
    placeholder: another spelling of `{option}` in `option`, such as ReCoRD's `@placeholder`.
    label_field: the field of the right option's name; None with `answers`.
    labels: the options' names, in order; None for numbers from 0.
    answers: instead, the field with the list of the right options' texts, of which there may be several.
    choices: number of options of an example.
    fewer: whether an example may have fewer options, or more, whose last ones are left out.
    length: length of a row, its special tokens included.
    architecture: the kind of model that the features are for.
    too_long: treatment of longer examples; truncation shortens the text, and then options, from their ends.
    label: the name in metrics; by default `<corpus>_multiple_choice`.

  Raises:
    UserError: unusable source or templates, another number of options, an unknown label, no examples, a file changed
      since it was prepared.
  """
  encoding = vocabularies.load(vocabulary)
  about, each = Template(text, "text"), _each(option, placeholder)
  listed = isinstance(options, str)
  parts = [] if listed else [Template(one, "options") for one in options]
  if parts and len(parts) != choices:
    raise UserError(f"config.task.options: found {len(parts)} templates, expected {choices}, one for each choice")
  names = numbered(range(choices) if labels is None else labels, "labels")
  if len(names) != choices:
    raise UserError(f"config.task.labels: found {len(names)} names, expected {choices}, one for each choice")
  own = [field for field in (each.fields if each else ()) if field != "option"]
  of_parts = [field for part in parts for field in part.fields]
  fields = (*about.fields, *own, *([options] if listed else of_parts), answers or label_field)

  def found_options(record: Record, where: str) -> list[str]:
    found = value(record, options, where) if listed else [part(record, where) or "" for part in parts]
    if not isinstance(found, list):
      raise UserError(f"{where}: found {type(found).__name__} in field {options!r}, expected a list of options")
    if len(found) != choices and not fewer:
      raise UserError(
        f"{where}: found {len(found)} options, expected {choices}, config.task.choices; or set fewer=true"
      )
    return [as_text(one, str(options), where) for one in found]

  def parsed(record: Record, where: str) -> tuple[str | None, list[str], list[str], np.ndarray | None]:
    """Return (text, options, their rows, the right options or None without a label)."""
    found = found_options(record, where)[:choices]
    if placeholder is not None:
      whole = Template(option, "option")(record, where) or ""
      rows = [whole.replace(placeholder, one) for one in found]
    else:
      rows = [each(record | {"option": one}, where) or "" for one in found]
    if answers is not None:
      given = value(record, answers, where)
      right = np.isin(found, [as_text(one, answers, where) for one in given or ()]) if given else None
    else:
      name = as_text(value(record, label_field, where), label_field, where)
      right = None if name == UNLABELLED else np.arange(len(found)) == number_of(name, names, label_field, where)
    return about(record, where), found, rows, right

  def examples(rows: Iterator[tuple[str, Record]]) -> Iterator[Example | Skip]:
    for where, record in rows:
      told, _, texts, right = parsed(record, where)
      ids = [encoding.encode(one) for one in texts]
      if told is None or not texts or not all(ids):
        yield Skip("empty text" if told is None else "empty option")
        continue
      kinds = np.full(choices, ABSENT, np.int8)
      kinds[: len(ids)] = WRONG if right is None else np.where(right, RIGHT, WRONG)
      yield {
        "text": np.asarray(encoding.encode(told), np.int32),
        "options": np.concatenate([np.asarray(one, np.int32) for one in ids]),
        "option_lengths": np.array([len(one) for one in ids] + [0] * (choices - len(ids)), np.int32),
        "option_labels": kinds,
        "labelled": np.int8(right is not None),
      }

  facts = {"text": text, "options": options if listed else list(options), "option": option, "placeholder": placeholder}
  facts |= {"label_field": label_field, "labels": list(names), "answers": answers, "choices": choices, "fewer": fewer}
  store = example_store.open_store(
    source,
    split,
    task="multiple_choice.v1",
    fields=fields,
    facts=facts,
    vocabulary=encoding,
    streams={"text": False, "options": False},
    examples=examples,
    cache=cache,
    data_dir=data_dir,
    verify=verify,
  )
  make = encoder_inputs.Sequences if architecture == "encoder" else Delimited
  sequences = make(store, ("text", "options"), length)
  room = length - sequences.extra
  if room < 2:
    raise UserError(f"config.task.length: found {length}, expected at least {sequences.extra + 2}")
  option_lengths_NC = np.reshape(store.arrays["option_lengths"], (-1, choices))
  kinds_NC = np.reshape(store.arrays["option_labels"], (-1, choices))
  whole_N1 = (store.lengths["text"] + option_lengths_NC.max(axis=1))[:, None]
  used, _ = fit(whole_N1, (room,), too_long, store.path, ("length",))

  def read(index_B: np.ndarray) -> dict[str, np.ndarray]:
    example_B = used[index_B]
    lengths_BC = option_lengths_NC[example_B]
    skip_BC = np.cumsum(lengths_BC, axis=1) - lengths_BC
    kept_BC = np.minimum(lengths_BC, room - 1)
    text_BC = np.minimum(store.lengths["text"][example_B][:, None], room - kept_BC)
    rows = [
      sequences(example_B, np.stack([text_BC[:, c], kept_BC[:, c]], axis=1), skip_BC[:, c]) for c in range(choices)
    ]
    kinds_BC = kinds_NC[example_B]
    if architecture == "encoder":
      rows = [dict(zip(("encoder_input_tokens", "encoder_token_types"), row)) for row in rows]
    return stacked(rows) | {
      "option_labels": kinds_BC,
      "label": np.argmax(kinds_BC, axis=1),
      "example_weights": np.asarray(store.arrays["labelled"])[example_B] * (kinds_BC == RIGHT).any(axis=1),
    }

  def of_records(more: Sequence[str]) -> list[dict[str, Any]]:
    found = records.used(source, split, fields=(*fields, *more), data_dir=data_dir, examples=examples)
    return [_example(record, *parsed(record, where)) for where, record in (found[number] for number in used)]

  def _example(record: Record, told, options, rows, right) -> dict[str, Any]:
    places = [] if right is None else np.flatnonzero(right).tolist()
    texts = value(record, answers, "") if answers else [options[place] for place in places]
    return {
      "record": record,
      "text": told,
      "options": options,
      "label": list(names)[places[0]] if places else None,
      "answers": list(texts or ()),
    }

  described = features(encoding, length=length, choices=choices, architecture=architecture)
  made = {"length": length, "too_long": too_long}
  made |= {} if architecture == "encoder" else {"architecture": architecture}
  return Task(
    name=label or f"{store.name}_multiple_choice",
    vocabulary=encoding,
    fingerprint=digest(task="multiple_choice.v1", examples=store.fingerprint, **made),
    num_examples=used.size,
    features=described,
    batch=encoder_inputs.batch_of(read, described),
    examples=of_records,
    classes=tuple(names),
  )


def _each(option: str, placeholder: str | None) -> Template | None:
  """Return the template of an option's row; UserError unless it has a place for the option."""
  made = Template(option, "option")
  if placeholder is None and "option" not in made.fields:
    raise UserError(f"config.task.option: found {option!r}, expected {{option}} in it, or a placeholder")
  return made
