"""Translation language modelling: masked tokens in pairs of sentences.

Lample and Conneau 2019, section 3.3.

  config.task = {"name": "translation_lm", "source": "parallel:corpus/{split}.{field}.gz",
                 "vocabulary": "vocabulary", "text": "{en}", "pair": "{de}"}

A row is [CLS] x [SEP] [CLS] y [SEP], a sentence and its translation, which see each other.
Positions begin again with y, and `encoder_token_types` is the language of each token. Tokens of
both are masked as in `mlm`, again in every epoch. Without `pair`, a row is [CLS] x [SEP] alone, the
paper's masked language modelling of one language by sentences; a mixture alternates the two.

Worked example, languages 0 and 1: x = 5 6, y = 7, [CLS] 2, [SEP] 3, mask 9, with 6 masked:

    encoder_input_tokens   2 5 9 3 2 7 3 0        encoder_token_types    0 0 0 0 1 1 1 0
    encoder_target_tokens  0 0 6 0 0 0 0 0        encoder_positions      0 1 2 3 0 1 2 3
"""

from __future__ import annotations

import dataclasses

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Record, Skip
from t5x_like.data import random
from t5x_like.data.features import Feature, Features, encoder
from t5x_like.data.preprocessors.masking import Masking, Mode, predicted_positions
from t5x_like.data.supervised.example_store import Example, ExampleStore
from t5x_like.data.supervised.labelled import ExampleRows, LabelledArguments
from t5x_like.data.supervised.sequences import Encoded
from t5x_like.data.supervised.templates import Template
from t5x_like.data.supervised.too_long import TooLong
from t5x_like.data.task import Task, rows_only
from t5x_like.errors import UserError
from t5x_like.quiet_tensorflow import tf
from t5x_like.slots import Length
from t5x_like.vocabularies import Vocabulary

FEW_TARGETS = True  # see `laptop`
# The arguments of the task on the built-in corpus, for `:debug`.
BUILT_IN = {"source": "builtin", "vocabulary": "bytes", "text": "{text}", "pair": "{reversed}"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceArguments(LabelledArguments):
  """The arguments of rows of sentences before they are masked.

  Attributes:
    text, pair: templates of the sentences.
    languages: the numbers of their languages.
    length: length of a row, special tokens included.
    too_long: treatment of longer pairs; truncation shortens the longer sentence first, from its
      end.
  """

  text: str
  pair: str | None = None
  languages: tuple[int, ...] = rows_only(default=(0, 1))
  length: Length = rows_only(default=256)
  too_long: TooLong = rows_only(default="skip")

  def features(self, vocabulary: Vocabulary) -> Features:
    return encoder(self.length, "positions")

  def build(self) -> Task:
    """Prepare the examples and return the task; errors as for `Arguments.build`."""
    templates = {"text": Template(self.text, "text")}
    if self.pair:
      templates["pair"] = Template(self.pair, "pair")
    if len(self.languages) < len(templates) or min(self.languages) < 0:
      raise UserError(
        f"config.task.languages: found {list(self.languages)} for {len(templates)} texts, expected "
        "a number from 0 on for each"
      )
    vocabulary = vocabularies.load(self.vocabulary)
    cls = np.array([vocabularies.special_id(vocabulary, "cls")], np.int32)

    def make_example(record: Record, where: str) -> Example | Skip:
      example = {}
      for name, template in templates.items():
        example[name] = np.asarray(vocabulary.encode(template(record, where)), np.int32)
      if not all(ids.size for ids in example.values()):
        return Skip("no tokens")
      if self.pair:
        example["pair"] = np.concatenate([cls, example["pair"]])
      return example

    def make_rows(store: ExampleStore) -> ExampleRows:
      encoded = Encoded(store, tuple(templates), self.length, 1)
      used, lengths_nD = encoded.fit(self.too_long)

      def read(index_B: np.ndarray) -> dict[str, np.ndarray]:
        rows = encoded(used[index_B], lengths_nD[index_B])
        return self._add_languages(rows, lengths_nD[index_B, :1])

      return ExampleRows(used.size, read, truncated=encoded.truncated_share(used, lengths_nD))

    return self.build_task(
      "translation_lm.v1",
      vocabulary,
      fields=tuple(field for template in templates.values() for field in template.fields),
      streams=dict.fromkeys(templates, False),
      make_example=make_example,
      make_rows=make_rows,
    )

  def _add_languages(
    self, rows: dict[str, np.ndarray], first_length_B1: np.ndarray
  ) -> dict[str, np.ndarray]:
    """Return rows with the language of each token as its type, and with positions."""
    positions_BL = np.broadcast_to(np.arange(self.length), rows["encoder_input_tokens"].shape)
    if self.pair is not None:
      second_start_B1 = 2 + first_length_B1
      is_second_BL = positions_BL >= second_start_B1
      positions_BL = np.where(is_second_BL, positions_BL - second_start_B1, positions_BL)
    rows["encoder_token_types"] = np.take(self.languages, rows["encoder_token_types"].astype(int))
    rows["encoder_positions"] = positions_BL
    return rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(SentenceArguments):
  """The arguments of translation language modelling.

  Attributes:
    masking, rate, mask_share, random_share: see `tasks.mlm`, without `spans`.
  """

  masking: Mode = "tokens"
  rate: float = 0.15
  mask_share: float = 0.8
  random_share: float = 0.1

  def features(self, vocabulary: Vocabulary) -> Features:
    length = self.length
    features = encoder(length, "target_tokens", "positions")
    features["encoder_loss_weights"] = Feature((length,), "float32")
    features["encoder_masked_positions"] = Feature((max(1, round(self.rate * length)),), "int32")
    return features

  def build(self) -> Task:
    """Prepare the examples and return the task.

    Raises:
      UserError: unusable templates, languages or shares; a vocabulary without padding; and as
        `LabelledArguments.build_task`.
    """
    if self.masking == "spans":
      raise UserError(
        "config.task.masking: found 'spans', expected another one: two sentences have no spans"
      )
    vocabulary = vocabularies.load(self.vocabulary)
    masks = Masking(
      vocabulary,
      self.length,
      self.masking,
      float(self.rate),
      float(self.mask_share),
      float(self.random_share),
    )
    fields = dataclasses.fields(SentenceArguments)
    sentences = SentenceArguments(**{field.name: getattr(self, field.name) for field in fields})
    unmasked_task = sentences.build()

    def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
      rows = unmasked_task.batch(example_index_B, epoch_B, seed)
      key_B = random.row_keys(seed, epoch_B, example_index_B)
      masked = masks(rows["encoder_input_tokens"], key_B)
      rows["encoder_input_tokens"] = masked["inputs"]
      rows["encoder_target_tokens"] = masked["targets"]
      rows["encoder_loss_weights"] = masked["weights"]
      rows["encoder_masked_positions"] = predicted_positions(masked["weights"], masks.max_chosen)
      return rows

    return dataclasses.replace(
      unmasked_task,
      fingerprint=self.fingerprint("translation_lm.v1", rows=unmasked_task.fingerprint),
      numbering=unmasked_task.fingerprint,
      features=self.features(vocabulary),
      batch=batch,
    )
