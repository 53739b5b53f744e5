"""The rows of a decoder from the inputs and targets of an encoder-decoder's task (Raffel et al.
2020, section 3.2.1).

Both are one sequence, the targets behind the EOS of the inputs, with the padding at the end. Worked
example, the inputs [5, 999, 8, 1] and the targets [999, 6, 7, 1] of span corruption, with a padding
token each and start 1:

    decoder_input_tokens      1 5 999 8 1 999 6 7 0 0
    decoder_target_tokens     5 999 8 1 999 6 7 1 0 0
    decoder_segment_ids       1 1 1 1 1 1 1 1 0 0
    decoder_loss_weights      1 1 1 1 1 1 1 1 0 0    `causal`: the paper's language model, which learns all of it
                              0 0 0 0 1 1 1 1 0 0    `prefix`: the prefix LM, whose inputs are given
    decoder_causal_attention  1 1 1 1 1 0 0 0 0 0    `prefix` only
"""

from __future__ import annotations

from t5x_like import vocabularies
from t5x_like.data import features as declared
from t5x_like.data.features import Features
from t5x_like.data.preprocessors.decoder_only import decoder_only
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.task import Batch
from t5x_like.errors import UserError
from t5x_like.vocabularies import Vocabulary


def described(form: str, features: Features) -> Features:
  """Return the features of the rows; UserError if the task's own are not an encoder-decoder's."""
  if not {"encoder_input_tokens", "decoder_target_tokens"} <= features.keys():
    raise UserError(
      f"config.task.as_decoder: found {form!r}, but this task does not make the inputs and "
      "targets of an encoder-decoder; leave it out"
    )
  (inputs,), (targets,) = (
    features[name].shape for name in ("encoder_input_tokens", "decoder_target_tokens")
  )
  return declared.decoder(
    inputs + targets, "segment_ids", *["causal_attention"] * (form == "prefix")
  )


def applied(form: str, before: Batch, vocabulary: Vocabulary) -> Batch:
  """Return the `batch` of a task in the form `causal` or `prefix`, from its `batch` for
  encoder-decoders."""
  pad = vocabularies.padding_id(vocabulary)
  start = vocabularies.start_id(vocabulary)

  def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    made = before(example_index_B, epoch_B, seed)
    tokens_BT = tf.concat([made["encoder_input_tokens"], made["decoder_target_tokens"]], axis=1)
    given_BS = made.get(
      "encoder_segment_ids", tf.cast(made["encoder_input_tokens"] != pad, tf.int32)
    )
    valid_BT = tf.concat([given_BS, tf.cast(made["decoder_loss_weights"], tf.int32)], axis=1)
    order_BT = tf.argsort(1 - valid_BT, axis=1, stable=True)
    segments_BT = tf.gather(valid_BT, order_BT, batch_dims=1)
    targets_BT = tf.where(
      segments_BT > 0, tf.gather(tokens_BT, order_BT, batch_dims=1), max(pad, 0)
    )
    rows = decoder_only(targets_BT, start, prefix_B=tf.reduce_sum(given_BS, axis=1))
    real_BT = tf.cast(segments_BT, tf.float32)
    inputs_BT = tf.where(segments_BT > 0, rows["decoder_input_tokens"], max(pad, 0))
    rows |= {"decoder_input_tokens": inputs_BT, "decoder_segment_ids": segments_BT}
    if form == "prefix":
      return rows | {"decoder_loss_weights": rows["decoder_loss_weights"] * real_BT}
    del rows["decoder_causal_attention"]
    return rows | {"decoder_loss_weights": real_BT}

  return batch
