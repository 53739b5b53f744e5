"""BART's noise functions (Lewis et al. 2020, section 2.2), on whole batches of windows.

Worked examples on A B C . D E ., mask _:

    permute_sentences  D E . A B C .      sentences in a uniformly random order
    rotate             C . D E . A B      rotated to begin with a uniformly drawn token
    mask               A _ C . _ E .      exactly `round(rate * W)` tokens become the mask
    delete             A C . E .          exactly `round(rate * W)` tokens are deleted
    infill             A _ . D _ E .      spans of Poisson(3) tokens become a mask each, even empty

Infilling draws span lengths until they sum to `round(rate * W)` tokens, and cuts the last length to
reach it exactly. The spans, in random order, go between the kept tokens at distinct, uniformly
drawn positions, so no two touch. (The authors' code, fairseq's `denoising_dataset.py`, draws
lengths in the same way. There, spans may touch, a span that runs into another covers less, and a
share of the masks (`--mask-random`, by default 0) become random tokens.) Tokens near the ends are
noise slightly less often, because a span lies between two kept tokens. The task decides which rates
may be combined; permutation and rotation come first.
"""

from __future__ import annotations

import math

import numpy as np

from t5x_like.data import random
from t5x_like.data.preprocessors.sentences import Sentences
from t5x_like.data.preprocessors.span_corruption import scatter
from t5x_like.quiet_tensorflow import tf


def permute_sentences(tokens_BW: tf.Tensor, sentences: Sentences, key_B: tf.Tensor) -> tf.Tensor:
  """Permute sentences randomly: int32 [B, W], random keys uint64 [B] -> int32 [B, W].

  The text before the first and after the last boundary counts as a sentence.
  """
  W = tokens_BW.shape[1]
  starts_BT = tf.cast(sentences.starts(tokens_BW), tf.int32)
  sentence_BW = tf.pad(tf.cumsum(starts_BT, axis=1), [[0, 0], [1, 0]])  # the number of each token's
  random_BW = tf.bitwise.right_shift(random.bits(key_B, W), tf.constant(1, tf.uint32))
  score_BW = tf.gather(random_BW, sentence_BW, batch_dims=1)
  # Sort once by (the sentence's random word, sentence, position), so equal random words do not mix
  # two sentences.
  order_BW = tf.cast(score_BW, tf.int64) * W + tf.cast(sentence_BW, tf.int64)
  order_BW = tf.sort(order_BW * W + tf.range(W, dtype=tf.int64), axis=1)
  return tf.gather(tokens_BW, tf.cast(order_BW % W, tf.int32), batch_dims=1)


def rotate(tokens_BW: tf.Tensor, key_B: tf.Tensor) -> tf.Tensor:
  """Rotate each window to begin at a random token: [B, W] -> [B, W]."""
  W = tokens_BW.shape[1]
  first_B = random.integers(random.bits(key_B, 1)[:, 0], W)
  return tf.gather(tokens_BW, (tf.range(W) + first_B[:, None]) % W, batch_dims=1)


def mask(tokens_BW: tf.Tensor, rate: float, mask_id: int, key_B: tf.Tensor) -> tf.Tensor:
  """Mask tokens: replace `round(rate * W)` of each row with `mask_id`: [B, W] -> [B, W]."""
  W = tokens_BW.shape[1]
  return tf.where(_mask_of_positions(_subset(W, round(rate * W), key_B), W), mask_id, tokens_BW)


def delete(tokens_BW: tf.Tensor, rate: float, key_B: tf.Tensor) -> tf.Tensor:
  """Delete tokens: [B, W] -> [B, W - round(rate * W)]."""
  W = tokens_BW.shape[1]
  return tf.gather(tokens_BW, _subset(W, W - round(rate * W), key_B), batch_dims=1)


def max_spans(noise_tokens: int, mean: float) -> int:
  """Return the most spans of infilling: ten standard deviations above the mean, or `noise_tokens`.

  With at most `noise_tokens` spans, the result is never longer than the text.
  """
  expected = noise_tokens / mean
  return min(math.ceil(expected + 10 * math.sqrt(expected / mean + 1) + 4), noise_tokens)


def infill(
  tokens_BW: tf.Tensor, rate: float, mean: float, mask_id: int, key_B: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Infill text: replace spans of Poisson lengths with one mask each.

  Returns:
    (int32 [B, W - noise + S], with S the most spans, 0 after the end; int32 [B], the size of each
    row).
  """
  W = tokens_BW.shape[1]
  noise = round(rate * W)
  num_kept = W - noise
  S = min(max_spans(noise, mean), num_kept + 1)
  length_BS, spans_B = _draw_span_lengths(random.row_keys(1, key_B), S, noise, mean)
  # Draw `spans` of the kept + 1 positions between kept tokens uniformly; unused spans go past the
  # end.
  bits = tf.bitcast(random.bits(random.row_keys(2, key_B), num_kept + 1), tf.int32)
  position_BS = tf.math.top_k(bits, k=S, sorted=True).indices
  is_used_BS = tf.range(S) < spans_B[:, None]
  # Sort by position, each with its length, so the span that was cut to reach the sum may be
  # anywhere.
  order_BS = tf.sort(tf.where(is_used_BS, position_BS, num_kept + S) * S + tf.range(S), axis=1)
  position_BS = order_BS // S
  length_BS = tf.gather(length_BS, order_BS % S, batch_dims=1)
  L = num_kept + S
  mask_position_BS = tf.where(is_used_BS, position_BS + tf.range(S), L)
  is_mask_BL = _scatter(mask_position_BS, tf.ones_like(mask_position_BS), L)
  source_BL = tf.cumsum(1 + _scatter(mask_position_BS, length_BS - 1, L), axis=1, exclusive=True)
  size_B = num_kept + spans_B
  text_BL = tf.gather(tokens_BW, tf.minimum(source_BL, W - 1), batch_dims=1)
  text_BL = tf.where(is_mask_BL > 0, mask_id, text_BL)
  return tf.where(tf.range(L) < size_B[:, None], text_BL, 0), size_B


def _draw_span_lengths(
  key_B: tf.Tensor, spans: int, noise: int, mean: float
) -> tuple[tf.Tensor, tf.Tensor]:
  """Draw Poisson lengths of spans that sum to `noise`.

  Returns:
    (int32 [B, spans], the lengths, 0 for unused spans; int32 [B], the number of spans in use).
  """
  length_BS = poisson(random.bits(key_B, spans), mean)
  sum_BS = tf.minimum(tf.cumsum(length_BS, axis=1), noise)
  # The last span takes the rest.
  last_B1 = tf.fill([tf.shape(sum_BS)[0], 1], noise)
  sum_BS = tf.concat([sum_BS[:, :-1], last_B1], axis=1)
  length_BS = sum_BS - tf.pad(sum_BS[:, :-1], [[0, 0], [1, 0]])
  spans_B = 1 + tf.reduce_sum(tf.cast(sum_BS[:, :-1] < noise, tf.int32), axis=1)
  return length_BS, spans_B


def poisson(bits_BN: tf.Tensor, mean: float) -> tf.Tensor:
  """Draw Poisson variates from random words by inverting the CDF: uint32 [B, N] -> int32 [B, N]."""
  share = math.exp(-mean)
  below = []
  k = 0
  total = share
  while total < 1 - 2**-33 and k < 200:
    below.append(min(round(total * 2**32), 2**32))
    k += 1
    share *= mean / k
    total += share
  limits = tf.constant(np.array(below, np.int64))
  flat_bits = tf.reshape(tf.cast(bits_BN, tf.int64), [-1])
  return tf.reshape(tf.searchsorted(limits, flat_bits, "right"), tf.shape(bits_BN))


def _subset(W: int, k: int, key_B: tf.Tensor) -> tf.Tensor:
  """Draw a uniformly random subset of k of W positions, ascending: int32 [B, k]."""
  return random.subsets(random.bits(key_B, W), k)


def _mask_of_positions(position_BK: tf.Tensor, length: int) -> tf.Tensor:
  """Return true at the positions: int32 [B, K] -> bool [B, length]."""
  return _scatter(position_BK, tf.ones_like(position_BK), length) > 0


def _scatter(position_BN: tf.Tensor, value_BN: tf.Tensor, length: int) -> tf.Tensor:
  """Scatter as `scatter` does, but ignore positions at or above `length`."""
  return scatter(tf.minimum(position_BN, length), value_BN, length + 1)[:, :length]
