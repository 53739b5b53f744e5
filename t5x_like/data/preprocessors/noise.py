"""T5's input and target formats, given a window and its noise mask.

Raffel et al. 2020, table 3 and sections 3.3.1 and 3.3.2. Worked example: tokens [10, 11, 12, 13,
14, 15], noise TTFFTF, a vocabulary of 1000 whose mask is 50, no EOS:

    masks           inputs [50, 50, 12, 13, 50, 15]    targets: the whole window (BERT, MASS)
    replace_spans   inputs [999, 12, 13, 998, 15]      targets [999, 10, 11, 998, 14]
    drop_tokens     inputs [12, 13, 15]                targets [10, 11, 14]

Sentinel i stands for the i-th run of noise in both inputs and targets, even if a window begins with
noise; no sentinel closes the targets. The T5 library builds targets by replacing the runs of kept
tokens, which is equivalent for windows that begin with a kept token and end with noise, as in span
corruption. For others, such as the example, its targets are [10, 11, 999, 14, 998], in which
sentinels do not precede the tokens they stand for. The targets here therefore follow the paper's
figure 2, without its final sentinel, which T5's span corruption does not have. Every function takes
a whole batch and any noise; the caller ensures that the lengths suffice.
"""

from __future__ import annotations

from collections.abc import Sequence

from t5x_like.quiet_tensorflow import tf


def left_justify(
  tokens_BW: tf.Tensor, keep_BW: tf.Tensor, length: int, eos_id: int | None = 1, pad_id: int = 0
) -> tf.Tensor:
  """Move the kept tokens of every row to its left, then append EOS (unless None) and padding.

  Args:
    tokens_BW: int32 [B, W].
    keep_BW: bool [B, W]; the kept tokens and EOS must fit in `length`.
    length: the length of the result.
    eos_id: the id after the tokens of every row; None for none.
    pad_id: the id of padding.

  Returns:
    int32 [B, length].
  """
  if eos_id is not None:
    tokens_BW = tf.pad(tokens_BW, [[0, 0], [0, 1]], constant_values=eos_id)
    keep_BW = tf.pad(keep_BW, [[0, 0], [0, 1]], constant_values=True)
  position_BW = tf.cumsum(tf.cast(keep_BW, tf.int32), axis=1, exclusive=True)
  return _place([(tokens_BW, position_BW, keep_BW)], length, pad_id)


def replace_spans(
  tokens_BW: tf.Tensor,
  noise_BW: tf.Tensor,
  *,
  sentinels: Sequence[int],
  inputs_length: int,
  targets_length: int,
  eos_id: int | None = 1,
  pad_id: int = 0,
) -> dict[str, tf.Tensor]:
  """Replace every run of noise with a sentinel; the targets are the runs, each after its sentinel.

  Args:
    tokens_BW: int32 [B, W].
    noise_BW: bool [B, W].
    sentinels: the ids of the sentinels, at least as many as there can be runs.
    inputs_length: the length of inputs, enough for the kept tokens, a sentinel per run and EOS.
    targets_length: the length of targets, enough for the noise, a sentinel per run and EOS.
    eos_id: the id after inputs and after targets; None for none.
    pad_id: the id of padding.

  Returns:
    `inputs` int32 [B, inputs_length] and `targets` int32 [B, targets_length].
  """
  is_first_BW = noise_BW & ~tf.pad(noise_BW[:, :-1], [[0, 0], [1, 0]])
  num_runs_BW = tf.cumsum(tf.cast(is_first_BW, tf.int32), axis=1)  # so far
  sentinels_BW = tf.gather(tf.constant(sentinels, tf.int32), tf.maximum(num_runs_BW - 1, 0))
  keep_BW = ~noise_BW | is_first_BW
  inputs = left_justify(
    tf.where(is_first_BW, sentinels_BW, tokens_BW), keep_BW, inputs_length, eos_id, pad_id
  )
  num_noise_BW = tf.cumsum(tf.cast(noise_BW, tf.int32), axis=1)
  # The positions of noise tokens; a sentinel goes just before the first token of its run.
  position_BW = num_noise_BW + num_runs_BW - 1
  parts = [(tokens_BW, position_BW, noise_BW), (sentinels_BW, position_BW - 1, is_first_BW)]
  if eos_id is not None:
    last_B1 = num_noise_BW[:, -1:] + num_runs_BW[:, -1:]
    parts.append((tf.fill(tf.shape(last_B1), eos_id), last_B1, tf.ones_like(last_B1, tf.bool)))
  return {"inputs": inputs, "targets": _place(parts, targets_length, pad_id)}


def drop_tokens(
  tokens_BW: tf.Tensor,
  noise_BW: tf.Tensor,
  *,
  inputs_length: int,
  targets_length: int,
  eos_id: int | None = 1,
  pad_id: int = 0,
) -> dict[str, tf.Tensor]:
  """Move the noise from the inputs to the targets; see `replace_spans` for shapes."""
  return {
    "inputs": left_justify(tokens_BW, ~noise_BW, inputs_length, eos_id, pad_id),
    "targets": left_justify(tokens_BW, noise_BW, targets_length, eos_id, pad_id),
  }


def replace_with_masks(
  tokens_BW: tf.Tensor,
  noise_BW: tf.Tensor,
  *,
  mask_id: int,
  random_fraction: float = 0.0,
  ordinary_ids: tf.Tensor | None = None,
  bits_BW: tf.Tensor | None = None,
) -> tf.Tensor:
  """Replace noise with `mask_id` or, in a fraction of the cases, with a random id.

  Args:
    tokens_BW: int32 [B, W].
    noise_BW: bool [B, W].
    mask_id: the id that replaces noise.
    random_fraction: the probability that a noise token becomes a random id.
    ordinary_ids: int32 [N], from which random ids are drawn; required with a random fraction.
    bits_BW: uint32 [B, W] random words; required with a random fraction.

  Returns:
    int32 [B, W].
  """
  replacement_BW = tf.fill(tf.shape(tokens_BW), mask_id)
  if random_fraction:
    # One random word decides both: conditioned on being below the fraction, it is uniform there.
    share_BW = tf.cast(bits_BW, tf.float64) / (2.0**32 * random_fraction)
    index_BW = tf.cast(tf.minimum(share_BW, 1.0) * len(ordinary_ids), tf.int32)
    drawn_BW = tf.gather(ordinary_ids, tf.minimum(index_BW, len(ordinary_ids) - 1))
    replacement_BW = tf.where(share_BW < 1.0, drawn_BW, replacement_BW)
  return tf.where(noise_BW, replacement_BW, tokens_BW)


def shuffle_tokens(tokens_BW: tf.Tensor, bits_BW: tf.Tensor) -> tf.Tensor:
  """Shuffle every row uniformly: int32 [B, W], random words uint32 [B, W] -> int32 [B, W]."""
  order_BW = tf.argsort(tf.bitcast(bits_BW, tf.int32), axis=1, stable=True)
  return tf.gather(tokens_BW, order_BW, batch_dims=1)


def noise_mask(bits_BW: tf.Tensor, k: int) -> tf.Tensor:
  """Draw `k` tokens of every row uniformly: random words uint32 [B, W] -> bool [B, W]."""
  positions = tf.math.top_k(tf.bitcast(bits_BW, tf.int32), k=k, sorted=False).indices
  batch = tf.shape(bits_BW)[0]
  length = bits_BW.shape[1]
  flat = tf.reshape(positions + tf.range(batch)[:, None] * length, [-1, 1])
  counts = tf.scatter_nd(flat, tf.ones([batch * k], tf.int32), [batch * length])
  return tf.reshape(counts, [-1, length]) > 0


def _place(parts, length: int, pad_id: int) -> tf.Tensor:
  """Put values at their positions in rows of padding, int32 [B, length].

  Args:
    parts: tuples of (values, positions, mask of the values to put), each [B, N].
    length: the length of a row.
    pad_id: the id of padding.
  """
  batch = tf.shape(parts[0][0])[0]
  row_B1 = tf.range(batch)[:, None] * length
  flat_positions = []
  flat_values = []
  for values_BN, positions_BN, mask_BN in parts:
    flat_positions.append(tf.boolean_mask(positions_BN + row_B1, mask_BN))
    flat_values.append(tf.boolean_mask(values_BN, mask_BN))
  positions = tf.concat(flat_positions, 0)
  values = tf.concat(flat_values, 0)
  # `scatter_nd` adds to zeros, so values are relative to padding.
  flat = tf.scatter_nd(positions[:, None], values - pad_id, [batch * length]) + pad_id
  return tf.reshape(flat, [-1, length])
