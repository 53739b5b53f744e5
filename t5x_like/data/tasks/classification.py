"""Classification and regression of a text or a pair of texts, for encoders (Devlin et al. 2019, section 4.1).

  config.task = {"name": "classification", "source": "tsv:train=rte/train.tsv,validation=rte/dev.tsv",
                 "text": "{sentence1}", "pair": "{sentence2}", "label_field": "label",
                 "labels": ["entailment", "not_entailment"], "vocabulary": "vocabulary"}

A row is [CLS] text [SEP] or [CLS] text [SEP] pair [SEP], types 0 and 1. `label` is the index of its label in
`labels` or, without `labels`, the number in the field itself (regression). `example_weights` is 1, but 0 in the rows
that pad the last batch of an evaluation. Where labels are class names, -1 means that an example has none, as in
TFDS's test splits: its weight is 0.

For a decoder, a row is start text extract, or start text delimiter pair extract, and each example has one row, features
[1, length], or with `both_orders` a second one with the texts exchanged; see `data/supervised/delimited.py`.

`Task.examples` gives `record`, `text` (a list of one or two) and `label` (a class name, a number, or None).
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
from t5x_like.slots import Length
from t5x_like.store.reader import Verify

UNLABELLED = "-1"


# On the built-in corpus, for `:debug`.
BUILT_IN = {"source": "builtin", "vocabulary": "bytes", "text": "{text}", "labels": ["short", "long"]}


def features(vocabulary, /, *, length: int, labels, architecture: str, both_orders: bool, **_) -> Features:
  """Return the features of the task with these arguments."""
  described = rows_of(length, architecture, 2 if both_orders else None)
  label = Feature((), "float32" if labels is None else "int32")
  return described | {"label": label, "example_weights": Feature((), "float32")}


def task(
  *,
  source: str,
  split: str,
  text: str,
  pair: str | None = None,
  label_field: str = "label",
  labels: list | tuple | None = None,
  vocabulary: str = "bytes",
  length: Length = 128,
  architecture: Literal["encoder", "decoder"] = "encoder",
  both_orders: bool = False,
  too_long: TooLong = "truncate",
  cache: str = "data/prepared",
  data_dir: str | None = None,
  label: str | None = None,
  verify: Verify = "auto",
) -> Task:
  """Make the task.

  Args:
    source, split, vocabulary, cache, data_dir, verify: see `text_to_text`.
    text, pair: templates of the text or texts.
    label_field: the field of the label.
    labels: its possible values, in the order of the classes; None for regression.
    length: length of a row, its special tokens included.
    architecture: the kind of model that the features are for.
    both_orders: for a decoder, rows of pairs in both orders, for labels independent of it (GPT-1's similarity).
    too_long: treatment of longer examples; truncation shortens the longer text first, from its end.
    label: the name in metrics; by default `<corpus>_classification`.

  Raises:
    UserError: unusable source or templates, an unknown label, no examples, a file changed since it was prepared.
  """
  if both_orders and (architecture == "encoder" or not pair):
    raise UserError("config.task.both_orders: found True, expected a pair of texts and architecture='decoder'")
  templates = {"text": Template(text, "text")} | ({"pair": Template(pair, "pair")} if pair else {})
  encoding = vocabularies.load(vocabulary)
  numbers = None if labels is None else numbered(labels, "labels")

  def parsed(record: Record, where: str) -> tuple[dict[str, str | None], str]:
    found = as_text(value(record, label_field, where), label_field, where)
    return {name: template(record, where) for name, template in templates.items()}, found

  def examples(rows: Iterator[tuple[str, Record]]) -> Iterator[Example | Skip]:
    for where, record in rows:
      texts, found = parsed(record, where)
      empty = next((name for name, part in texts.items() if part is None), None if found else "label")
      if empty:
        yield Skip(f"empty {empty}")
        continue
      ids = {name: np.asarray(encoding.encode(part), np.int32) for name, part in texts.items()}
      if not all(part.size for part in ids.values()):
        yield Skip("no tokens")
        continue
      unlabelled = numbers is not None and found == UNLABELLED
      yield ids | {"label": np.int32(-1) if unlabelled else number_of(found, numbers, label_field, where)}

  fields = (*(field for template in templates.values() for field in template.fields), label_field)
  store = example_store.open_store(
    source,
    split,
    task="classification.v1",
    fields=fields,
    facts={"text": text, "pair": pair, "label_field": label_field, "labels": None if labels is None else list(numbers)},
    vocabulary=encoding,
    streams=dict.fromkeys(templates, False),
    examples=examples,
    cache=cache,
    data_dir=data_dir,
    verify=verify,
  )
  make = encoder_inputs.Sequences if architecture == "encoder" else Delimited
  sequences = make(store, tuple(templates), length)
  exchanged = Delimited(store, tuple(templates)[::-1], length) if both_orders else None
  used, lengths_nD = _fitted(store, sequences, tuple(templates), length, too_long)

  def read(index_B: np.ndarray) -> dict[str, np.ndarray]:
    example_B, lengths_BD = used[index_B], lengths_nD[index_B]
    label_B = np.asarray(store.arrays["label"][used[index_B]])
    labelled_B = np.ones(index_B.size, bool) if numbers is None else label_B >= 0
    if architecture == "encoder":
      rows = dict(zip(("encoder_input_tokens", "encoder_token_types"), sequences(example_B, lengths_BD)))
    else:
      both = [sequences(example_B, lengths_BD)]
      both += [exchanged(example_B, lengths_BD[:, ::-1])] if exchanged else []
      rows = stacked(both)
    return rows | {"label": np.where(labelled_B, label_B, 0), "example_weights": labelled_B}

  def of_records(more: Sequence[str]) -> list[dict[str, Any]]:
    found = records.used(source, split, fields=(*fields, *more), data_dir=data_dir, examples=examples)
    out = []
    for where, record in (found[number] for number in used):
      texts, label = parsed(record, where)
      named = None if numbers is not None and label == UNLABELLED else label
      out.append({"record": record, "text": list(texts.values()), "label": named if numbers else float(label)})
    return out

  described = features(encoding, length=length, labels=labels, architecture=architecture, both_orders=both_orders)
  made: dict[str, Any] = {"length": length, "too_long": too_long}
  made |= {} if architecture == "encoder" else {"architecture": architecture, "both_orders": both_orders}
  return Task(
    name=label or f"{store.name}_classification",
    vocabulary=encoding,
    fingerprint=digest(task="classification.v1", examples=store.fingerprint, **made),
    num_examples=used.size,
    features=described,
    batch=encoder_inputs.batch_of(read, described),
    examples=of_records,
    classes=tuple(numbers or ()),
  )


def _fitted(store, sequences, streams, length, too_long) -> tuple[np.ndarray, np.ndarray]:
  """Return the examples used and the lengths of their texts; truncation shortens the longer text first."""
  lengths_ND = np.stack([store.lengths[name] for name in streams], axis=1)
  room = length - sequences.extra
  if room < len(streams):
    raise UserError(f"config.task.length: found {length}, expected at least {sequences.extra + len(streams)}")
  used, total_n1 = fit(lengths_ND.sum(axis=1, keepdims=True), (room,), too_long, store.path, ("length",))
  lengths_nD = lengths_ND[used]
  if len(streams) == 1:
    return used, total_n1
  short_n = np.minimum(lengths_nD.min(axis=1), np.maximum(room // 2, total_n1[:, 0] - lengths_nD.max(axis=1)))
  first_is_short = lengths_nD[:, 0] <= lengths_nD[:, 1]
  first_n = np.where(first_is_short, short_n, total_n1[:, 0] - short_n)
  return used, np.stack([first_n, total_n1[:, 0] - first_n], axis=1)
