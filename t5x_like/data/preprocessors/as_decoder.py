"""The rows of a decoder from the inputs and targets of an encoder-decoder's task.

Both are one sequence (Raffel et al. 2020, section 3.2.1): the targets follow the EOS of the inputs,
with the padding at the end. Worked example, the inputs [5, 999, 8, 1] and the targets
[999, 6, 7, 1] of span corruption, with a padding token each and start 1:

    decoder_input_tokens      1 5 999 8 1 999 6 7 0 0
    decoder_target_tokens     5 999 8 1 999 6 7 1 0 0
    decoder_segment_ids       1 1 1 1 1 1 1 1 0 0
    decoder_loss_weights      1 1 1 1 1 1 1 1 0 0    `causal`: a language model, which learns both
                              0 0 0 0 1 1 1 1 0 0    `prefix`: a prefix LM, which learns the targets
    decoder_causal_attention  1 1 1 1 1 0 0 0 0 0    `prefix` only
"""

from __future__ import annotations

from t5x_like import vocabularies
from t5x_like.data import features as layouts
from t5x_like.data.features import BatchFunction, Features
from t5x_like.data.preprocessors.decoder_only import decoder_only
from t5x_like.errors import UserError
from t5x_like.quiet_tensorflow import tf
from t5x_like.vocabularies import Vocabulary


def describe(form: str, features: Features) -> Features:
  """Return the features of the rows.

  Args:
    form: `causal` or `prefix`.
    features: the features of the encoder-decoder's task.

  Raises:
    UserError: the features are not an encoder-decoder's.
  """
  if not {"encoder_input_tokens", "decoder_target_tokens"} <= features.keys():
    raise UserError(
      f"config.task.as_decoder: found {form!r}, but this task does not make the inputs and "
      "targets of an encoder-decoder; leave it out"
    )
  (inputs_length,) = features["encoder_input_tokens"].shape
  (targets_length,) = features["decoder_target_tokens"].shape
  extra_names = ["segment_ids"]
  if form == "prefix":
    extra_names.append("causal_attention")
  return layouts.decoder(inputs_length + targets_length, *extra_names)


def apply(form: str, batch: BatchFunction, vocabulary: Vocabulary) -> BatchFunction:
  """Return the `batch` of a decoder's task, made from the `batch` of an encoder-decoder's."""
  pad = vocabularies.padding_id(vocabulary)
  start = vocabularies.start_id(vocabulary)

  def decoder_batch(
    example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int
  ) -> dict[str, tf.Tensor]:
    return _concatenate(form, batch(example_index_B, epoch_B, seed), pad, start)

  return decoder_batch


def _concatenate(
  form: str, features: dict[str, tf.Tensor], pad: int, start: int
) -> dict[str, tf.Tensor]:
  """Append the targets to the inputs and move the padding of both to the end."""
  inputs_BS = features["encoder_input_tokens"]
  tokens_BT = tf.concat([inputs_BS, features["decoder_target_tokens"]], axis=1)
  is_input_BS = features.get("encoder_segment_ids", tf.cast(inputs_BS != pad, tf.int32))
  is_target_BT = tf.cast(features["decoder_loss_weights"], tf.int32)
  valid_BT = tf.concat([is_input_BS, is_target_BT], axis=1)
  order_BT = tf.argsort(1 - valid_BT, axis=1, stable=True)
  segments_BT = tf.gather(valid_BT, order_BT, batch_dims=1)
  targets_BT = tf.gather(tokens_BT, order_BT, batch_dims=1)
  targets_BT = tf.where(segments_BT > 0, targets_BT, max(pad, 0))
  rows = decoder_only(targets_BT, start, prefix_B=tf.reduce_sum(is_input_BS, axis=1))
  inputs_BT = tf.where(segments_BT > 0, rows["decoder_input_tokens"], max(pad, 0))
  rows["decoder_input_tokens"] = inputs_BT
  rows["decoder_segment_ids"] = segments_BT
  weights_BT = tf.cast(segments_BT, tf.float32)
  if form == "prefix":
    rows["decoder_loss_weights"] *= weights_BT
  else:
    del rows["decoder_causal_attention"]
    rows["decoder_loss_weights"] = weights_BT
  return rows
