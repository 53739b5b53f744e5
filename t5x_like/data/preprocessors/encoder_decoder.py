"""Inputs and targets -> the features of an encoder-decoder, under T5X's names."""

from t5x_like.data.features import encoder_decoder as features
from t5x_like.data.quiet_tensorflow import tf

__all__ = ["encoder_decoder", "features", "shift_right"]


def shift_right(targets_BT: tf.Tensor) -> tf.Tensor:
  """Teacher-forcing inputs: the targets one place later, 0 first: [B, T] -> [B, T]."""
  return tf.pad(targets_BT[:, :-1], [[0, 0], [1, 0]])


def encoder_decoder(inputs_BS: tf.Tensor, targets_BT: tf.Tensor) -> dict[str, tf.Tensor]:
  """Makes the four features of an unpacked encoder-decoder batch.

  Args:
    inputs_BS: int32 [B, S], 0 is padding.
    targets_BT: int32 [B, T], 0 is padding.

  Returns:
    `encoder_input_tokens` int32 [B, S]; `decoder_input_tokens` (targets shifted right behind a 0),
    `decoder_target_tokens` int32 [B, T]; `decoder_loss_weights` float32 [B, T], 1 where a target is not padding.
  """
  return {
    "encoder_input_tokens": inputs_BS,
    "decoder_input_tokens": shift_right(targets_BT),
    "decoder_target_tokens": targets_BT,
    "decoder_loss_weights": tf.cast(targets_BT != 0, tf.float32),
  }
