"""Prefix language modelling: predict the second part of a window from the first, the prefix.

The decoder-only form is the prefix LM of Raffel et al. 2020, section 3.2.1: all tokens of the
prefix attend to each other. The encoder-decoder form is the language modelling objective with which
they train encoder-decoders (section 3.2.3 and tables 2 and 4): the encoder reads the prefix. The
length of the prefix is uniform over 1..W-1 for a window of W tokens.

Example: the window 5 6 7 8 with a prefix of 2 tokens, where EOS is 1:

    encoder_decoder   encoder_input_tokens 5 6 1 0   decoder_target_tokens 7 8 1 0
    decoder           decoder_target_tokens 5 6 7 8, loss on 7 8, `decoder_causal_attention` 1 1 1 0

The decoder-only form reads windows of `length` tokens. The encoder-decoder form reads one token
less, so that either part and its EOS fit in `length` inputs or targets.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from t5x_like.data import features as feature_layouts
from t5x_like.data import random
from t5x_like.data.features import Features
from t5x_like.data.preprocessors.decoder_only import decoder_only
from t5x_like.data.preprocessors.encoder_decoder import encoder_decoder
from t5x_like.data.task import Task, unfingerprinted
from t5x_like.data.windows import ONLY_CHECKED, DocumentsEnd, TextArguments
from t5x_like.errors import UserError
from t5x_like.quiet_tensorflow import tf
from t5x_like.slots import Length
from t5x_like.vocabularies import Vocabulary, padding_id, start_id


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(TextArguments):
  """The arguments of prefix language modelling.

  Attributes:
    length: the length of every feature, from which the length of windows follows.
    architecture: the kind of model to make features for.
    documents_end: how each document in the store must end: `eos`, `nothing` or `any`; by default
      `eos` for decoders and `nothing` for encoder-decoders, which T5 trained on joined documents.
  """

  length: Length = 512
  architecture: Literal["decoder", "encoder_decoder"] = "decoder"
  documents_end: DocumentsEnd | None = unfingerprinted(ONLY_CHECKED, default=None)

  def features(self, vocabulary: Vocabulary) -> Features:
    if self.architecture == "decoder":
      return feature_layouts.decoder(self.length, "causal_attention")
    return feature_layouts.encoder_decoder(self.length, self.length, vocabulary)

  def build(self) -> Task:
    """Open the store and return the task.

    Raises:
      UserError: the length leaves no window to cut; or the store cannot be used, is shorter than
        one window, or has documents that do not end as required.
    """
    is_decoder = self.architecture == "decoder"
    window = self.length if is_decoder else self.length - 1
    if window < 2:
      raise UserError(
        f"length: found {self.length}, expected at least {self.length - window + 2}: a token on "
        "each side of the cut"
      )
    default_end = "eos" if is_decoder else "nothing"
    windows = self.windows(window, self.documents_end or default_end)
    vocabulary = windows.vocabulary
    start = start_id(vocabulary)

    def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
      tokens_BW = windows.read(example_index_B, epoch_B, seed)
      bits_B1 = random.bits(random.row_keys(seed, epoch_B, example_index_B), 1)
      prefix_B = 1 + random.integers(bits_B1[:, 0], window - 1)
      if is_decoder:
        return decoder_only(tokens_BW, start, prefix_B=prefix_B)
      inputs_BT, targets_BT = cut_windows(
        tokens_BW, prefix_B, vocabulary.eos_id, padding_id(vocabulary)
      )
      return encoder_decoder(inputs_BT, targets_BT, vocabulary)

    return self.build_task("prefix_lm.v1", windows, batch)


def cut_windows(
  tokens_BW: tf.Tensor, prefix_B: tf.Tensor, eos_id: int, pad_id: int = 0
) -> tuple[tf.Tensor, tf.Tensor]:
  """Cut windows into inputs and targets, each ended by EOS.

  Args:
    tokens_BW: the windows, int32.
    prefix_B: the number of tokens in each prefix, int32 in 0..W.
    eos_id: the id that ends inputs and targets.
    pad_id: the id that fills the rest.

  Returns:
    Inputs and targets, int32 [B, W + 1].
  """
  batch = tf.shape(tokens_BW)[0]
  length = tokens_BW.shape[1]
  position_T = tf.range(length + 1)
  prefix_B1 = prefix_B[:, None]
  with_eos_BT = tf.pad(tokens_BW, [[0, 0], [0, 1]], constant_values=eos_id)
  eos_or_padding_BT = tf.where(position_T == prefix_B1, eos_id, pad_id)
  inputs_BT = tf.where(position_T < prefix_B1, with_eos_BT, eos_or_padding_BT)
  # Targets are the tokens after the prefix, moved to the front: position j holds token prefix + j
  # of the window. Indices are into the flattened batch, and limited to the row's EOS.
  row_start_B1 = tf.range(batch)[:, None] * (length + 1)
  index_BT = row_start_B1 + tf.minimum(position_T + prefix_B1, length)
  flat_targets = tf.gather(tf.reshape(with_eos_BT, [-1]), tf.reshape(index_BT, [-1]))
  targets_BT = tf.reshape(flat_targets, [-1, length + 1])
  return inputs_BT, tf.where(position_T + prefix_B1 <= length, targets_BT, pad_id)
