"""The features of a decoder-only model from its targets, under T5X's names.

Every token is a target and the next input: `decoder_input_tokens` are the targets shifted right by
one, after `start_id`. Worked example: targets [5, 6, 7, 8], start 1, the last two targets in a
second document:

    decoder_input_tokens   1 5 6 7    with documents   1 5 1 7
    decoder_segment_ids                                1 1 2 2
    decoder_positions                                  0 1 0 1

and with a prefix of 2 tokens (Raffel et al. 2020, section 3.2.1 and figure 3), bidirectional and
without loss:

    decoder_input_tokens      1 5 6 7
    decoder_loss_weights      0 0 1 1
    decoder_causal_attention  1 1 1 0
"""

from __future__ import annotations

from t5x_like.quiet_tensorflow import tf


def decoder_only(
  targets_BT: tf.Tensor,
  start_id: int,
  documents_BT: tf.Tensor | None = None,
  prefix_B: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
  """Build the features of a batch without padding.

  Args:
    targets_BT: int32 [B, T].
    start_id: the first input of every row or, with documents, of every document.
    documents_BT: int32 [B, T], the document of each token, from 1; attention stays inside each
      document.
    prefix_B: int32 [B], 1..T-1, the number of targets in the prefix; attention among their inputs
      is bidirectional.

  Returns:
    `decoder_input_tokens`, `decoder_target_tokens` int32 [B, T] and `decoder_loss_weights` float32
    [B, T]; with documents also `decoder_segment_ids` and `decoder_positions` int32 [B, T]; with a
    prefix also `decoder_causal_attention` int32 [B, T], 1 on the start and the prefix.
  """
  inputs_BT = tf.pad(targets_BT[:, :-1], [[0, 0], [1, 0]], constant_values=start_id)
  features = {
    "decoder_input_tokens": inputs_BT,
    "decoder_target_tokens": targets_BT,
    "decoder_loss_weights": tf.ones_like(targets_BT, tf.float32),
  }
  if documents_BT is not None:
    is_new_BT = documents_BT[:, 1:] != documents_BT[:, :-1]
    is_first_BT = tf.pad(is_new_BT, [[0, 0], [1, 0]], constant_values=True)
    features["decoder_input_tokens"] = tf.where(is_first_BT, start_id, inputs_BT)
    features["decoder_segment_ids"] = documents_BT
    features["decoder_positions"] = _positions(is_first_BT)
  if prefix_B is not None:
    position_T = tf.range(tf.shape(targets_BT)[1])
    features["decoder_loss_weights"] = tf.cast(position_T >= prefix_B[:, None], tf.float32)
    features["decoder_causal_attention"] = tf.cast(position_T <= prefix_B[:, None], tf.int32)
  return features


def _positions(is_first_BT: tf.Tensor) -> tf.Tensor:
  """Return each token's position in its document, int32 [B, T].

  Args:
    is_first_BT: bool [B, T], whether a document begins at a token; true at the first of each row.
  """
  start_N = tf.cast(tf.where(is_first_BT)[:, 1], tf.int32)
  # The number of the document of each position, over all rows.
  document = tf.cumsum(tf.cast(tf.reshape(is_first_BT, [-1]), tf.int32)) - 1
  document_BT = tf.reshape(document, tf.shape(is_first_BT))
  return tf.range(tf.shape(is_first_BT)[1]) - tf.gather(start_N, document_BT)
