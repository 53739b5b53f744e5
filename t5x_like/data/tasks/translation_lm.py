"""Translation language modelling: masked tokens in pairs of sentences (Lample and Conneau 2019,
section 3.3).

  config.task = {"name": "translation_lm", "source": "parallel:corpus/{split}.{field}.gz",
                 "vocabulary": "vocabulary", "text": "{en}", "pair": "{de}"}

A row is [CLS] x [SEP] [CLS] y [SEP], a sentence and its translation, which see each other.
Positions begin again with y, and `encoder_token_types` is the language of each token. Tokens of
both are masked as in `mlm`, anew in every epoch. Without `pair`, a row is [CLS] x [SEP] alone, the
paper's masked language modelling of one language by sentences; a mixture alternates the two.

Worked example, languages 0 and 1: x = 5 6, y = 7, [CLS] 2, [SEP] 3, mask 9, with 6 masked:

    encoder_input_tokens   2 5 9 3 2 7 3 0        encoder_token_types    0 0 0 0 1 1 1 0
    encoder_target_tokens  0 0 6 0 0 0 0 0        encoder_positions      0 1 2 3 0 1 2 3
"""

from __future__ import annotations

import dataclasses
from typing import Unpack

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora.sources import Skip
from t5x_like.data import random
from t5x_like.data.features import Feature, Features, encoder
from t5x_like.data.preprocessors.masking import Masking, Mode, places
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.supervised.labelled import ExampleRows, LabelledSource, build_task
from t5x_like.data.supervised.sequences import Encoded
from t5x_like.data.supervised.templates import Template
from t5x_like.data.supervised.too_long import TooLong
from t5x_like.data.task import Task, digest
from t5x_like.errors import UserError
from t5x_like.slots import Length

FEW_TARGETS = True  # see `laptop`
# On the built-in corpus, for `:debug`.
BUILT_IN = {"source": "builtin", "vocabulary": "bytes", "text": "{text}", "pair": "{reversed}"}


def features(vocabulary, /, *, length: int, rate: float, **_) -> Features:
  """Return the features of the task with these arguments."""
  described = encoder(length, "target_tokens", "positions") | {
    "encoder_loss_weights": Feature((length,), "float32")
  }
  return described | {"encoder_masked_positions": Feature((max(1, round(rate * length)),), "int32")}


def task(
  *,
  text: str,
  pair: str | None = None,
  languages: tuple[int, ...] = (0, 1),
  length: Length = 256,
  masking: Mode = "tokens",
  rate: float = 0.15,
  mask_share: float = 0.8,
  random_share: float = 0.1,
  too_long: TooLong = "skip",
  **records: Unpack[LabelledSource],
) -> Task:
  """Make the task.

  Args:
    text, pair: templates of the sentences.
    languages: the numbers of their languages.
    length: of a row, special tokens included.
    masking, rate, mask_share, random_share: see `tasks.mlm`, without `spans`.
    too_long: treatment of longer pairs; truncation shortens the longer sentence first, from its
      end.
    records: see `Records`.

  Raises:
    UserError: unusable templates, languages or shares; a vocabulary without padding; and as
      `labelled`.
  """
  templates = {"text": Template(text, "text")} | ({"pair": Template(pair, "pair")} if pair else {})
  if len(languages) < len(templates) or min(languages) < 0 or masking == "spans":
    found = f"found {list(languages)} with masking={masking!r}"
    raise UserError(
      f"config.task.languages: {found}, expected a number from 0 on for each sentence, and no spans"
    )
  source = LabelledSource(**records)
  vocabulary = vocabularies.load(source.vocabulary)
  masks = Masking(vocabulary, length, masking, float(rate), float(mask_share), float(random_share))
  cls = np.array([vocabularies.special_id(vocabulary, "cls")], np.int32)

  def example(record, where):
    texts = {name: template(record, where) for name, template in templates.items()}
    ids = {name: np.asarray(vocabulary.encode(text), np.int32) for name, text in texts.items()}
    if not all(part.size for part in ids.values()):
      return Skip("no tokens")
    return {
      name: np.concatenate([cls, part]) if name == "pair" else part for name, part in ids.items()
    }

  def rows(store):
    made = Encoded(store, tuple(templates), length, 1)
    used, lengths_nD = made.fit(too_long)

    def read(index_B):
      row = made(used[index_B], lengths_nD[index_B])
      place = np.arange(length)
      after = row["encoder_token_types"]
      start_B1 = 2 + lengths_nD[index_B, :1]  # of the second sentence
      here = place - np.where(pair is not None and place >= start_B1, start_B1, 0)
      return row | {
        "encoder_token_types": np.take(languages, after.astype(int)),
        "encoder_positions": here,
      }

    return ExampleRows(used.size, read, used, None, made.truncated_share(used, lengths_nD))

  plain = build_task(
    "translation_lm.v1",
    source,
    vocabulary,
    fields=tuple(field for template in templates.values() for field in template.fields),
    facts={"text": text, "pair": pair},
    streams=dict.fromkeys(templates, False),
    make_example=example,
    make_rows=rows,
    features=encoder(length, "positions"),
    row_facts={"length": length, "too_long": too_long, "languages": list(languages)},
  )
  described = features(vocabulary, length=length, rate=rate)

  def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    row = plain.batch(example_index_B, epoch_B, seed)
    masked = masks(row["encoder_input_tokens"], random.row_keys(seed, epoch_B, example_index_B))
    names = {"inputs": "input_tokens", "targets": "target_tokens", "weights": "loss_weights"}
    row |= {f"encoder_{ours}": masked[name] for name, ours in names.items()}
    return row | {"encoder_masked_positions": places(masked["weights"], masks.most)}

  facts = dict(masking=masking, rate=rate, mask_share=mask_share, random_share=random_share)
  return dataclasses.replace(
    plain,
    fingerprint=digest(task="translation_lm.v1", rows=plain.fingerprint, **facts),
    numbering=plain.fingerprint,
    features=described,
    batch=batch,
  )
