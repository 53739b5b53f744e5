"""The features of an encoder-decoder from inputs and targets, under T5X's names."""

from __future__ import annotations

from t5x_like.quiet_tensorflow import tf
from t5x_like.vocabularies import Vocabulary, padding_id

__all__ = ["encoder_decoder", "shift_right"]


def shift_right(targets_BT: tf.Tensor, start_id: int = 0) -> tf.Tensor:
  """Shift targets right by one, after `start_id`, for teacher forcing: [B, T] -> [B, T]."""
  return tf.pad(targets_BT[:, :-1], [[0, 0], [1, 0]], constant_values=start_id)


def encoder_decoder(
  inputs_BS: tf.Tensor, targets_BT: tf.Tensor, vocabulary: Vocabulary | None = None
) -> dict[str, tf.Tensor]:
  """Build the features of an unpacked encoder-decoder batch.

  Args:
    inputs_BS: int32 [B, S].
    targets_BT: int32 [B, T].
    vocabulary: determines the padding of both (`vocabularies.padding_id`) and the decoder's start
      id; None means 0 for both, as in vocabularies made here.

  Returns:
    `encoder_input_tokens` int32 [B, S]; `decoder_input_tokens` (targets shifted right after the
    start), `decoder_target_tokens` int32 [B, T]; `decoder_loss_weights` float32 [B, T], 1 where a
    target is not padding. If the vocabulary has no padding, also `encoder_segment_ids` int32 [B,
    S], 0 on padding.
  """
  pad = 0
  start = 0
  if vocabulary is not None:
    pad = padding_id(vocabulary)
    start = vocabulary.decoder_start_id
  features = {
    "encoder_input_tokens": inputs_BS,
    "decoder_input_tokens": shift_right(targets_BT, start),
    "decoder_target_tokens": targets_BT,
  }
  if pad < 0:
    features = {name: tf.maximum(tokens, 0) for name, tokens in features.items()}
    features["encoder_segment_ids"] = tf.cast(inputs_BS != pad, tf.int32)
  features["decoder_loss_weights"] = tf.cast(targets_BT != pad, tf.float32)
  return features
