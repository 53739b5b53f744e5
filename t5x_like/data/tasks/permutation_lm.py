"""Permutation language modelling: the data of XLNet (Yang et al. 2019, arXiv:1906.08237).

Rows are as in `mlm`. A share of their tokens, by default the last sixth of a uniformly random
order (section 2.3, partial prediction with K = 6), is to be predicted; the others are given.
`encoder_order` is 0 for given tokens and 1, 2, … for the chosen ones, in the order of prediction.
Inputs keep every token: the model hides a token from its own prediction and from those before it.

Worked example: of [CLS] a b c d [SEP], with b predicted after d, the order is [0, 0, 2, 0, 1, 0]. d
is predicted from [CLS], a, c and [SEP], and b from these and d.

Special tokens are never predicted, as in the authors' code. `masking="token_spans"` chooses spans
of 1 to 5 tokens, as it does.
"""

from __future__ import annotations

import dataclasses
from typing import Unpack

from t5x_like.data import random
from t5x_like.data.features import Feature, Features
from t5x_like.data.preprocessors import segments, sentences
from t5x_like.data.preprocessors.masking import Mode
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.task import Task, digest
from t5x_like.data.tasks import _masked_rows
from t5x_like.data.windows import TextArguments
from t5x_like.slots import Length

FEW_TARGETS = True  # see `laptop`
_UNUSED_FEATURES = (
  "encoder_span_starts",
  "encoder_span_ends",
  "encoder_cls_positions",
  "next_sentence_label",
)


def features(vocabulary, /, *, length: int, **arguments) -> Features:
  """Return the features of the task with these arguments."""
  described = {}
  for name, feature in _masked_rows.features(vocabulary, length=length, **arguments).items():
    if name not in _UNUSED_FEATURES:
      described[name] = feature
  described["encoder_order"] = Feature((length,), "int32")
  return described


def task(
  *,
  length: Length = 512,
  input_format: segments.Format = "segment_pair",
  masking: Mode = "tokens",
  rate: float = 1 / 6,
  random_next: float = 0.5,
  short_pairs: float = 0.1,
  sentence_rule: str = sentences.DEFAULT_RULE,
  segment_ids: bool = True,
  packed: bool = True,
  **text: Unpack[TextArguments],
) -> Task:
  """Make the task.

  Args:
    length, input_format, masking, random_next, short_pairs, sentence_rule, segment_ids, packed: see
      `tasks.mlm`.
    rate: share of the tokens that are predicted, 1 / K.
    text: see `TextArguments`.

  Raises:
    UserError: as `mlm`.
  """
  layout = {
    "input_format": input_format,
    "masking": masking,
    "rate": rate,
    "segment_ids": segment_ids,
    "packed": packed,
  }
  base = _masked_rows.task(
    length=length,
    mask_share=0.0,
    random_share=0.0,
    random_next=random_next,
    short_pairs=short_pairs,
    sentence_rule=sentence_rule,
    **layout,
    **text,
  )
  described = features(base.vocabulary, length=length, **layout)

  def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    rows = base.batch(example_index_B, epoch_B, seed)
    key_B = random.row_keys(9, random.row_keys(seed, epoch_B, example_index_B))
    is_chosen_BL = rows["encoder_loss_weights"] > 0
    rows["encoder_order"] = draw_order(is_chosen_BL, random.bits(key_B, length))
    return {name: rows[name] for name in described}

  return dataclasses.replace(
    base,
    name=text.get("label") or f"{base.name.removesuffix('_mlm')}_permutation_lm",
    fingerprint=digest(task="permutation_lm.v1", rows=base.fingerprint),
    features=described,
    batch=batch,
  )


def draw_order(is_chosen_BL: tf.Tensor, bits_BL: tf.Tensor) -> tf.Tensor:
  """Number the chosen places of each row from 1 in the order of random words; others are 0.

  bool [B, L], uint32 [B, L] -> int32 [B, L].
  """
  word_BL = tf.where(is_chosen_BL, tf.cast(bits_BL, tf.int64), tf.constant(2**32, tf.int64))
  rank_BL = tf.argsort(tf.argsort(word_BL, axis=1, stable=True), axis=1)
  return tf.where(is_chosen_BL, rank_BL + 1, 0)
