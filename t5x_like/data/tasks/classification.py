"""Classification and regression of a text or a pair of texts (Devlin et al. 2019, section 4.1).

  config.task = {"name": "classification", "source":
                 "tsv:train=rte/train.tsv,validation=rte/dev.tsv", "text": "{sentence1}", "pair":
                 "{sentence2}", "label_field": "label", "labels": ["entailment", "not_entailment"],
                 "vocabulary": "vocabulary"}

`data/supervised/sequences.py` defines the rows. `label` is the index of its label in `labels` or,
without `labels`, the number in the field itself (regression). `example_weights` is 1, except for
rows that pad the last batch of an evaluation and examples without a label, for which it is 0. If
labels are class names, the label -1 means that an example has none, as in TFDS's test splits,
unless -1 is among the names. Examples with an empty text are left out of training splits, whose
names begin with `train`, but not of other splits. For a decoder, each example has one row, features
[1, length], or with `both_orders` a second one with the texts exchanged.

`Task.examples` gives `record`, `text` (a list of one or two) and `label` (a class name, a number,
or None).
"""

import dataclasses
from typing import Any, Literal

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Record, Skip, field_value
from t5x_like.data.features import Feature, Features, labelled_rows
from t5x_like.data.supervised.example_store import Example, ExampleStore
from t5x_like.data.supervised.labelled import ExampleRows, LabelledArguments
from t5x_like.data.supervised.labels import is_unlabelled, label_number, number_labels
from t5x_like.data.supervised.sequences import layout_facts, rows_class, stack
from t5x_like.data.supervised.templates import Template, to_text
from t5x_like.data.supervised.too_long import TooLong
from t5x_like.data.task import Task, rows_only
from t5x_like.errors import UserError
from t5x_like.slots import Length
from t5x_like.vocabularies import Vocabulary

# The arguments of the task on the built-in corpus, for `:debug`.
BUILT_IN = {
  "source": "builtin",
  "vocabulary": "bytes",
  "text": "{text}",
  "labels": ["short", "long"],
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(LabelledArguments):
  """The arguments of classification.

  Attributes:
    text, pair: templates of the text or texts.
    label_field: the field of the label.
    labels: its possible values, in the order of the classes; None for regression.
    length: length of a row, its special tokens included.
    architecture: the kind of model that the features are for.
    both_orders: for a decoder, whether an example has a row for each order of its pair, for labels
      that do not depend on the order (GPT-1's similarity).
    too_long: treatment of longer examples; truncation shortens the longer text first, from its end.
  """

  text: str
  pair: str | None = None
  label_field: str = "label"
  labels: list | tuple | None = None
  length: Length = rows_only(default=128)
  architecture: Literal["encoder", "decoder"] = rows_only(default="encoder")
  both_orders: bool = rows_only(default=False)
  too_long: TooLong = rows_only(default="truncate")

  def features(self, vocabulary: Vocabulary) -> Features:
    label = Feature((), "float32" if self.labels is None else "int32")
    rows = labelled_rows(self.length, self.architecture, 2 if self.both_orders else None)
    return rows | {"label": label, "example_weights": Feature((), "float32")}

  def build(self) -> Task:
    """Prepare the examples and return the task.

    Raises:
      UserError: unusable templates or an unknown label; and as `LabelledArguments.build_task`.
    """
    if self.both_orders and (self.architecture == "encoder" or not self.pair):
      raise UserError(
        "config.task.both_orders: found True, expected a pair of texts and architecture='decoder'"
      )
    templates = {"text": Template(self.text, "text")}
    if self.pair:
      templates["pair"] = Template(self.pair, "pair")
    vocabulary = vocabularies.load(self.vocabulary)
    class_numbers = None if self.labels is None else number_labels(self.labels, "labels")
    examples = _LabelledTexts(
      templates, vocabulary, self.label_field, class_numbers, self.allows_gaps
    )

    def make_rows(store: ExampleStore) -> ExampleRows:
      rows = _LabelledRows(store, tuple(templates), self)
      return ExampleRows(
        rows.used.size, rows.read, rows.used, examples.view, rows.truncated_share()
      )

    return self.build_task(
      "classification.v1",
      vocabulary,
      fields=examples.fields,
      streams=dict.fromkeys(templates, False),
      make_example=examples.make_example,
      make_rows=make_rows,
      row_facts=layout_facts(self.architecture, vocabulary) if self.pair else {},
      classes=tuple(class_numbers or ()),
    )


class _LabelledTexts:
  """Labelled texts from records.

  Args:
    templates: the templates of one or two texts.
    vocabulary: the vocabulary of the ids.
    label_field: the field of the label.
    class_numbers: the numbers of the classes; None for regression.
    allows_gaps: whether texts may lack a field.

  Attributes:
    fields: the fields of a record in use.
  """

  def __init__(
    self,
    templates: dict[str, Template],
    vocabulary: Vocabulary,
    label_field: str,
    class_numbers: dict[str, int] | None,
    allows_gaps: bool,
  ):
    self._templates = templates
    self._vocabulary = vocabulary
    self._label_field = label_field
    self._class_numbers = class_numbers
    self._allows_gaps = allows_gaps
    text_fields = [field for template in templates.values() for field in template.fields]
    self.fields = (*text_fields, label_field)

  def make_example(self, record: Record, where: str) -> Example | Skip:
    """Return the ids of a record's texts and its label, or the reason to skip it."""
    texts, label = self._parse(record, where)
    for name, text in texts.items():
      if text is None:
        return Skip(f"empty {name}")
    if label is None:
      return Skip("empty label")
    example = {}
    for name, text in texts.items():
      example[name] = np.asarray(self._vocabulary.encode(text), np.int32)
    if not self._allows_gaps and not all(part.size for part in example.values()):
      return Skip("no tokens")
    if is_unlabelled(label, self._class_numbers):
      example["label"] = np.int32(-1)
    else:
      example["label"] = label_number(label, self._class_numbers, self._label_field, where)
    return example

  def view(self, record: Record, where: str, _: int) -> dict[str, Any]:
    """Return the texts and the label of a record; see `Task.examples`."""
    texts, label = self._parse(record, where)
    if self._class_numbers is None:
      label = float(label)
    elif is_unlabelled(label, self._class_numbers):
      label = None
    return {"text": list(texts.values()), "label": label}

  def _parse(self, record: Record, where: str) -> tuple[dict[str, str | None], str | None]:
    """Return the texts of a record by name, and its label; None for empty ones."""
    label = to_text(field_value(record, self._label_field, where), self._label_field, where)
    texts = {}
    for name, template in self._templates.items():
      texts[name] = template(record, where, self._allows_gaps)
    return texts, label or None


class _LabelledRows:
  """The rows of labelled texts.

  Attributes:
    used: the examples in use.
  """

  def __init__(self, store: ExampleStore, streams: tuple[str, ...], arguments: Arguments):
    self._labels_N = store.arrays["label"]
    self._is_encoder = arguments.architecture == "encoder"
    self._is_regression = arguments.labels is None
    rows = rows_class(arguments.architecture)
    self._rows = rows(store, streams, arguments.length)
    self._reversed_rows = None
    if arguments.both_orders:
      self._reversed_rows = rows(store, streams[::-1], arguments.length)
    self.used, self._lengths_nD = self._rows.fit(arguments.too_long)

  def truncated_share(self) -> float:
    """Return the share of the used examples that are shortened."""
    return self._rows.truncated_share(self.used, self._lengths_nD)

  def read(self, index_B: np.ndarray) -> dict[str, np.ndarray]:
    """Return the features of examples, by their positions in `used`."""
    example_B = self.used[index_B]
    lengths_BD = self._lengths_nD[index_B]
    features = self._rows(example_B, lengths_BD)
    if not self._is_encoder:
      orders = [features]
      if self._reversed_rows:
        orders.append(self._reversed_rows(example_B, lengths_BD[:, ::-1]))
      features = stack(orders)
    label_B = np.asarray(self._labels_N[example_B])
    is_labelled_B = (label_B >= 0) | self._is_regression
    features["label"] = np.where(is_labelled_B, label_B, 0)
    features["example_weights"] = is_labelled_B
    return features
