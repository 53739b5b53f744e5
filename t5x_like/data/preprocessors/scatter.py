"""Values put at places of a row."""

from __future__ import annotations

from t5x_like.data.quiet_tensorflow import tf


def scatter(place_BN: tf.Tensor, value_BN: tf.Tensor, length: int) -> tf.Tensor:
  """Zeros [B, length] with `value_BN` added at `place_BN`, all int32; places are below `length`."""
  batch = tf.shape(place_BN)[0]
  flat = tf.reshape(place_BN + tf.range(batch)[:, None] * length, [-1, 1])
  return tf.reshape(tf.scatter_nd(flat, tf.reshape(value_BN, [-1]), [batch * length]), [-1, length])
