"""Scattering of values to places in rows."""

from __future__ import annotations

from t5x_like.data.quiet_tensorflow import tf


def scatter(place_BN: tf.Tensor, value_BN: tf.Tensor, length: int) -> tf.Tensor:
  """Add `value_BN` at `place_BN` to zeros [B, length], all int32; places must be below `length`."""
  batch = tf.shape(place_BN)[0]
  flat = tf.reshape(place_BN + tf.range(batch)[:, None] * length, [-1, 1])
  return tf.reshape(tf.scatter_nd(flat, tf.reshape(value_BN, [-1]), [batch * length]), [-1, length])
