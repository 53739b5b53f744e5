"""Permutation language modelling: the data of XLNet (Yang et al. 2019, arXiv:1906.08237).

Rows are as in `mlm`. A share of their tokens, by default the last sixth of a uniformly random
order (section 2.3, partial prediction with K = 6), is predicted; the other tokens are context.
`encoder_order` is 0 for the context and 1, 2, … for the predicted tokens, in the order of
prediction.
Inputs keep every token: the model hides a token from its own prediction and from those before it.

Worked example: of [CLS] a b c d [SEP], with b predicted after d, the order is [0, 0, 2, 0, 1, 0]. d
is predicted from [CLS], a, c and [SEP], and b from these and d.

As in the authors' code, special tokens are never predicted, and `masking="token_spans"` chooses
spans of 1 to 5 tokens.
"""

from __future__ import annotations

import dataclasses

from t5x_like.data import random
from t5x_like.data.features import Feature, Features
from t5x_like.data.preprocessors import segments
from t5x_like.data.task import Task
from t5x_like.data.tasks._masked_rows import MaskedRowArguments
from t5x_like.quiet_tensorflow import tf
from t5x_like.vocabularies import Vocabulary

FEW_TARGETS = True  # see `laptop`
_UNUSED_FEATURES = (
  "encoder_span_starts",
  "encoder_span_ends",
  "encoder_cls_positions",
  "next_sentence_label",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(MaskedRowArguments):
  """The arguments of permutation language modelling; see `tasks.mlm` for the others.

  Attributes:
    rate: share of the tokens that are predicted, 1 / K.
  """

  input_format: segments.Format = "segment_pair"
  rate: float = 1 / 6

  def features(self, vocabulary: Vocabulary) -> Features:
    features = {}
    for name, feature in self.row_features(vocabulary).items():
      if name not in _UNUSED_FEATURES:
        features[name] = feature
    features["encoder_order"] = Feature((self.length,), "int32")
    return features

  def build(self) -> Task:
    """Open the store and return the task; errors as for `mlm`."""
    chosen_rows = self.build_rows("permutation_lm.v2", mask_share=0.0, random_share=0.0)
    features = self.features(chosen_rows.vocabulary)

    def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
      rows = chosen_rows.batch(example_index_B, epoch_B, seed)
      key_B = random.row_keys(9, random.row_keys(seed, epoch_B, example_index_B))
      is_chosen_BL = rows["encoder_loss_weights"] > 0
      rows["encoder_order"] = draw_order(is_chosen_BL, random.bits(key_B, self.length))
      return {name: rows[name] for name in features}

    return dataclasses.replace(chosen_rows, features=features, batch=batch)


def draw_order(is_chosen_BL: tf.Tensor, bits_BL: tf.Tensor) -> tf.Tensor:
  """Assign the chosen positions of each row their ranks by random words, from 1.

  Args:
    is_chosen_BL: bool [B, L].
    bits_BL: random words, uint32 [B, L].

  Returns:
    int32 [B, L], 0 at the positions that are not chosen.
  """
  word_BL = tf.where(is_chosen_BL, tf.cast(bits_BL, tf.int64), tf.constant(2**32, tf.int64))
  rank_BL = tf.argsort(tf.argsort(word_BL, axis=1, stable=True), axis=1)
  return tf.where(is_chosen_BL, rank_BL + 1, 0)
