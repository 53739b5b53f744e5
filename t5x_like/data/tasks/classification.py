"""Classification and regression of a text or a pair of texts, for encoders (Devlin et al. 2019,
section 4.1).

  config.task = {"name": "classification", "source":
                 "tsv:train=rte/train.tsv,validation=rte/dev.tsv", "text": "{sentence1}", "pair":
                 "{sentence2}", "label_field": "label", "labels": ["entailment", "not_entailment"],
                 "vocabulary": "vocabulary"}

`data/supervised/sequences.py` defines the rows. `label` is the index of its label in `labels` or,
without `labels`, the number in the field itself (regression). `example_weights` is 1, but 0 in the
rows that pad the last batch of an evaluation. Where labels are class names, -1 means that an
example has none, as in TFDS's test splits: its weight is 0. If -1 is among the names, it is a class
as any other. Training splits, whose names begin with `train`, lack examples with an empty text;
other splits have them. For a decoder each example has one row, features [1, length], or with
`both_orders` a second with the texts exchanged.

`Task.examples` gives `record`, `text` (a list of one or two) and `label` (a class name, a number,
or None).
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
from t5x_like.data.supervised.too_long import TooLong
from t5x_like.data.task import Task
from t5x_like.errors import UserError
from t5x_like.slots import Length

# On the built-in corpus, for `:debug`.
BUILT_IN = {
  "source": "builtin",
  "vocabulary": "bytes",
  "text": "{text}",
  "labels": ["short", "long"],
}


def features(
  vocabulary, /, *, length: int, labels, architecture: str, both_orders: bool, **_
) -> Features:
  """Return the features of the task with these arguments."""
  label = Feature((), "float32" if labels is None else "int32")
  rows = labelled_rows(length, architecture, 2 if both_orders else None)
  return rows | {"label": label, "example_weights": Feature((), "float32")}


def task(
  *,
  text: str,
  pair: str | None = None,
  label_field: str = "label",
  labels: list | tuple | None = None,
  length: Length = 128,
  architecture: Literal["encoder", "decoder"] = "encoder",
  both_orders: bool = False,
  too_long: TooLong = "truncate",
  **records: Unpack[LabelledSource],
) -> Task:
  """Make the task.

  Args:
    text, pair: templates of the text or texts.
    label_field: the field of the label.
    labels: its possible values, in the order of the classes; None for regression.
    length: length of a row, its special tokens included.
    architecture: the kind of model that the features are for.
    both_orders: for a decoder, rows of pairs in both orders, for labels independent of it (GPT-1's
      similarity).
    too_long: treatment of longer examples; truncation shortens the longer text first, from its end.
    records: see `Records`.

  Raises:
    UserError: unusable templates or an unknown label; and as `labelled`.
  """
  if both_orders and (architecture == "encoder" or not pair):
    raise UserError(
      "config.task.both_orders: found True, expected a pair of texts and architecture='decoder'"
    )
  templates = {"text": Template(text, "text")} | ({"pair": Template(pair, "pair")} if pair else {})
  source = LabelledSource(**records)
  vocabulary = vocabularies.load(source.vocabulary)
  numbers = None if labels is None else number_labels(labels, "labels")

  def parsed(record, where):
    label = to_text(field_value(record, label_field, where), label_field, where)
    return {
      name: template(record, where, source.allows_gaps) for name, template in templates.items()
    }, label or None

  def example(record, where):
    texts, label = parsed(record, where)
    if empty := next(
      (name for name, text in (*texts.items(), ("label", label)) if text is None), None
    ):
      return Skip(f"empty {empty}")
    ids = {name: np.asarray(vocabulary.encode(text), np.int32) for name, text in texts.items()}
    if not (source.allows_gaps or all(part.size for part in ids.values())):
      return Skip("no tokens")
    number = (
      np.int32(-1)
      if is_unlabelled(label, numbers)
      else label_number(label, numbers, label_field, where)
    )
    return ids | {"label": number}

  def view(record, where, _):
    texts, label = parsed(record, where)
    named = float(label) if numbers is None else None if is_unlabelled(label, numbers) else label
    return {"text": list(texts.values()), "label": named}

  def rows(store):
    orders = [tuple(templates)] + [("pair", "text")] * both_orders
    made = [rows_class(architecture)(store, streams, length) for streams in orders]
    used, lengths_nD = made[0].fit(too_long)

    def read(index_B):
      label_B = np.asarray(store.arrays["label"][used[index_B]])
      lengths_BD = lengths_nD[index_B]
      labelled_B = (label_B >= 0) | (numbers is None)
      found = [one(used[index_B], lengths_BD[:, :: (1, -1)[turn]]) for turn, one in enumerate(made)]
      found = found[0] if architecture == "encoder" else stack(found)
      return found | {"label": np.where(labelled_B, label_B, 0), "example_weights": labelled_B}

    return ExampleRows(used.size, read, used, view, made[0].truncated_share(used, lengths_nD))

  decoder = (
    {} if architecture == "encoder" else {"architecture": architecture, "both_orders": both_orders}
  )
  facts = {
    "text": text,
    "pair": pair,
    "label_field": label_field,
    "labels": numbers and list(numbers),
  }
  return build_task(
    "classification.v1",
    source,
    vocabulary,
    fields=(*(field for template in templates.values() for field in template.fields), label_field),
    facts=facts
    | ({"unlabelled": None} if UNLABELLED in (numbers or ()) else {})
    | source.gap_facts,
    streams=dict.fromkeys(templates, False),
    make_example=example,
    make_rows=rows,
    features=features(
      vocabulary, length=length, labels=labels, architecture=architecture, both_orders=both_orders
    ),
    row_facts={"length": length, "too_long": too_long, **decoder}
    | (layout_facts(architecture, vocabulary) if pair else {}),
    classes=tuple(numbers or ()),
  )
