"""Questions to answer, or texts to complete, with retrieved passages (REALM, Guu et al. 2020).

  config.task = {"name": "open_qa", "source": "jsonl:train=nq/train.jsonl,validation=nq/dev.jsonl",
                 "inputs": "{question}", "targets": "{answer}", "passages":
                 "jsonl:wikipedia/*.jsonl.gz", "passage": "{title} {text}", "retrieved": 8,
                 "vocabulary": "vocabulary"}

The source `salient:` gives texts with salient spans. The features of a row:

- `encoder_input_tokens`: the text up to EOS.
- `decoder_input_tokens`, `decoder_target_tokens`, `decoder_loss_weights`: its answer.
- `passage_tokens`, int32 [1 + retrieved, passage_length]: padding, which `training/retrieval.py`
  replaces by the retrieved passages, except in the first row, which is the null document.
- `own_passage`: the number of the passage that contains the text, which must not be retrieved for
  it; -1 if there is none.

`Task.examples` gives `record`, `inputs` and `targets`.
"""

import dataclasses

import numpy as np

from t5x_like import data, vocabularies
from t5x_like.contrib.retrieval.passages import (
  Passages,
  check_padding,
  encode,
  read_padded,
  text_digest,
)
from t5x_like.corpora.sources import Record, Skip
from t5x_like.data import features as layouts
from t5x_like.data.features import Feature, Features
from t5x_like.data.supervised.example_store import Example, ExampleStore
from t5x_like.data.supervised.labelled import ExampleRows, LabelledArguments, LabelledTask
from t5x_like.data.supervised.templates import Template
from t5x_like.data.supervised.too_long import TooLong, fit
from t5x_like.data.task import rows_only, unfingerprinted
from t5x_like.errors import UserError
from t5x_like.slots import Length, NonNegativeInt
from t5x_like.vocabularies import Vocabulary


@dataclasses.dataclass(frozen=True, kw_only=True)
class PassageTask(LabelledTask):
  """A task of labelled records, for models that retrieve passages.

  Attributes:
    passages: the passages to retrieve.
  """

  passages: Passages


# On the built-in corpus, for `:debug`.
BUILT_IN = {
  "source": "builtin",
  "vocabulary": "bytes",
  "inputs": "{text}",
  "targets": "{label}",
  "own": None,
  "passages": "builtin",
  "passage": "{text}",
  "passages_split": "validation",
}


def tiny(length: int) -> dict[str, int]:
  """Return the lengths for the laptop form of a recipe."""
  return {"inputs_length": 2 * length, "targets_length": 16, "passage_length": length}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(LabelledArguments):
  """The arguments of questions with retrieved passages.

  Attributes:
    inputs, targets: templates of a text and its answer over a record's fields.
    passages, passages_split: the source of the passages and its split.
    passage: the template of a passage; passages longer than `passage_length` are cut.
    retrieved: the number of passages retrieved for each text, not counting the null document.
    own: the template of the passage that contains the text, such as `{text}` with the source
      `salient:`. This passage is never retrieved, as it holds the answer (Guu et al. 2020, section
      3.4).
    inputs_length, targets_length, passage_length: the maximum number of tokens of each, with EOS.
    too_long: treatment of examples whose text or answer is longer.
  """

  SOURCES = ("source", "passages")

  inputs: str
  targets: str
  passages: str = unfingerprinted("the fingerprint covers the content of the passages")
  passage: str = rows_only(default="{text}")
  passages_split: str = unfingerprinted(
    "the fingerprint covers the content of the passages", default="train"
  )
  retrieved: NonNegativeInt = rows_only(default=8)
  own: str | None = None
  inputs_length: Length = rows_only(default=64)
  targets_length: Length = rows_only(default=32)
  passage_length: Length = rows_only(default=288)
  too_long: TooLong = rows_only(default="refuse")

  def features(self, vocabulary: Vocabulary) -> Features:
    task_features = layouts.encoder_decoder(self.inputs_length, self.targets_length)
    passages_shape = (1 + self.retrieved, self.passage_length)
    task_features["passage_tokens"] = Feature(passages_shape, "int32")
    task_features["own_passage"] = Feature((), "int32")
    return task_features

  def build(self) -> PassageTask:
    """Prepare the examples and return the task.

    Raises:
      UserError: unusable templates or lengths, or fewer passages than are to be retrieved; and as
        `LabelledArguments.build_task`.
    """
    if self.buckets > 1:
      raise UserError(
        f"config.task.buckets: found {self.buckets}, expected 1, as passages have one length"
      )
    vocabulary = vocabularies.load(self.vocabulary)
    check_padding(vocabulary)
    texts = {"inputs": self.inputs, "targets": self.targets}
    if self.own is not None:
      texts["own"] = self.own
    templates = {name: Template(text, name) for name, text in texts.items()}
    passages = Passages.open(
      self.passages, self.passages_split, self.passage, self.passage_length, self, vocabulary
    )
    if passages.num_passages <= self.retrieved:
      raise UserError(
        f"config.task.retrieved: found {self.retrieved}, expected less than the "
        f"{passages.num_passages} passages"
      )

    def render_templates(record: Record, where: str, _: int = 0) -> dict[str, str | None]:
      return {name: template(record, where) for name, template in templates.items()}

    def make_example(record: Record, where: str) -> Example | Skip:
      record_texts = render_templates(record, where)
      for name, text in record_texts.items():
        if not text:
          return Skip(f"empty {name}")
      return {
        "inputs": encode(vocabulary, record_texts["inputs"]),
        "targets": encode(vocabulary, record_texts["targets"]),
        "own": text_digest(record_texts.get("own", "")),
      }

    def make_rows(store: ExampleStore) -> ExampleRows:
      own_N = np.full(store.num_examples, -1)
      if self.own:
        own_N = _find_own_passages(store, passages)
      rows = _QuestionRows(store, self, vocabulary, own_N)
      return ExampleRows(rows.used.size, rows.read, rows.used, render_templates)

    fields = [field for template in templates.values() for field in template.fields]
    labelled_task = self.build_task(
      "open_qa.v1",
      vocabulary,
      fields=tuple(dict.fromkeys(fields)),
      streams={"inputs": True, "targets": True},
      make_example=make_example,
      make_rows=make_rows,
      row_facts={"passages": passages.store.fingerprint},
    )
    return PassageTask(passages=passages, **vars(labelled_task))


def _find_own_passages(store: ExampleStore, passages: Passages) -> np.ndarray:
  """Return the number of the passage that contains each text, int64 [N]; -1 for none."""
  own_N = passages.find_digests(np.asarray(store.arrays["own"]))
  data.announce(
    f"{store.path}: {(own_N >= 0).sum():,} of {own_N.size:,} texts are from a passage, which "
    "is not retrieved for them (config.task.own)"
  )
  return own_N


class _QuestionRows:
  """Reads rows of texts and answers, with padding for the passages that are retrieved later.

  Attributes:
    used: the numbers of the examples in use, int [n]; the others are too long.
  """

  def __init__(
    self, store: ExampleStore, arguments: Arguments, vocabulary: Vocabulary, own_N: np.ndarray
  ):
    self._store = store
    self._vocabulary = vocabulary
    self._own_N = own_N
    self._arguments = arguments
    lengths_N2 = np.stack([store.lengths["inputs"], store.lengths["targets"]], axis=1)
    limits = (arguments.inputs_length, arguments.targets_length)
    keys = ("inputs_length", "targets_length")
    self.used, _ = fit(lengths_N2, limits, arguments.too_long, store.path, keys)

  def read(self, index_B: np.ndarray) -> dict[str, np.ndarray]:
    example_B = self.used[index_B]
    arguments = self._arguments
    vocabulary = self._vocabulary
    inputs_BS, _ = read_padded(
      self._store, "inputs", example_B, arguments.inputs_length, vocabulary
    )
    targets_BT, valid_BT = read_padded(
      self._store, "targets", example_B, arguments.targets_length, vocabulary
    )
    shifted_BT = np.pad(
      targets_BT[:, :-1], ((0, 0), (1, 0)), constant_values=vocabulary.decoder_start_id
    )
    passages_shape = (example_B.size, 1 + arguments.retrieved, arguments.passage_length)
    return {
      "encoder_input_tokens": inputs_BS,
      "decoder_input_tokens": shifted_BT,
      "decoder_target_tokens": targets_BT,
      "decoder_loss_weights": valid_BT,
      "passage_tokens": np.full(passages_shape, vocabulary.pad_id, np.int32),
      "own_passage": self._own_N[example_B],
    }
