"""Prefix language modelling: the first part of a window is given, and the second is predicted.

Raffel et al. 2020, section 3.2.1: the decoder-only form is their prefix LM, whose tokens of the
prefix all see each other. The encoder-decoder form is the language modelling objective their
encoder-decoders are trained with (section 3.2.3 and tables 2 and 4): the first part is encoded. The
place of the cut is uniform: of W tokens, the prefix has 1..W-1. Worked example, the window [5, 6,
  7, 8] cut after 2, EOS 1:

    encoder_decoder   encoder_input_tokens 5 6 1 0   decoder_target_tokens 7 8 1 0
    decoder           decoder_target_tokens 5 6 7 8, loss on 7 8, `decoder_causal_attention` 1 1 1 0

The decoder-only form reads windows of `length` tokens; the encoder-decoder form windows of `length
- 1`, so that any part and its EOS fit `length` inputs and `length` targets.
"""

from __future__ import annotations

from typing import Literal, Unpack

from t5x_like.data import features as layouts
from t5x_like.data import random
from t5x_like.data.features import Features
from t5x_like.data.preprocessors.decoder_only import decoder_only
from t5x_like.data.preprocessors.encoder_decoder import encoder_decoder
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.task import Task
from t5x_like.data.windows import DocumentsEnd, TextArguments
from t5x_like.errors import UserError
from t5x_like.slots import Length
from t5x_like.vocabularies import padding_id, start_id


def features(vocabulary, /, *, length: int, architecture: str, **_) -> Features:
  """Return the features of the task with these arguments."""
  if architecture == "decoder":
    return layouts.decoder(length, "causal_attention")
  return layouts.encoder_decoder(length, length, vocabulary)


def task(
  *,
  length: Length = 512,
  architecture: Literal["decoder", "encoder_decoder"] = "decoder",
  documents_end: DocumentsEnd | None = None,
  **text: Unpack[TextArguments],
) -> Task:
  """Make the task.

  Args:
    length: length of every feature; the window follows from it.
    architecture: the kind of model that the features feed.
    documents_end: the end of each document in the store: `eos`, `nothing` or `any`; by default
      `eos` for decoders and `nothing` for encoder-decoders, which T5 trained on joined documents.
    text: see `TextArguments`.

  Raises:
    UserError: a length that cannot be cut; the store cannot be used, is shorter than one window, or
      its documents do not end as they should.
  """
  is_decoder = architecture == "decoder"
  window = length if is_decoder else length - 1
  if window < 2:
    raise UserError(
      f"length: found {length}, expected at least {length - window + 2}: a token on "
      "each side of the cut"
    )
  if documents_end is None:
    documents_end = "eos" if is_decoder else "nothing"
  source = TextArguments(**text)
  windows = source.windows(window, documents_end)
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

  facts = {"length": length, "architecture": architecture}
  return source.task("prefix_lm.v1", windows, batch, features(vocabulary, **facts), **facts)


def cut_windows(
  tokens_BW: tf.Tensor, prefix_B: tf.Tensor, eos_id: int, pad_id: int = 0
) -> tuple[tf.Tensor, tf.Tensor]:
  """Cut windows into inputs and targets, each ended by EOS.

  int32 [B, W] and int32 [B] in 0..W -> two int32 [B, W + 1].
  """
  batch = tf.shape(tokens_BW)[0]
  length = tokens_BW.shape[1]
  place_T = tf.range(length + 1)
  prefix_B1 = prefix_B[:, None]
  closed_BT = tf.pad(tokens_BW, [[0, 0], [0, 1]], constant_values=eos_id)
  inputs_BT = tf.where(
    place_T < prefix_B1, closed_BT, tf.where(place_T == prefix_B1, eos_id, pad_id)
  )
  # The rest, moved to the front: place j holds token prefix + j; past the EOS there is nothing.
  source_BT = tf.range(batch)[:, None] * (length + 1) + tf.minimum(place_T + prefix_B1, length)
  moved_BT = tf.reshape(
    tf.gather(tf.reshape(closed_BT, [-1]), tf.reshape(source_BT, [-1])), [-1, length + 1]
  )
  return inputs_BT, tf.where(place_T + prefix_B1 <= length, moved_BT, pad_id)
