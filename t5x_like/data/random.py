"""Random numbers that are a pure function of (seed, epoch, example index), for whole batches at once.

A counter-based generator: nothing is carried from one draw to the next, so any row of any batch can be made anywhere,
in any order, on any number of hosts, with the same result. The mixing function is the SplitMix64 finaliser (Steele,
Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014; the constants are David Stafford's
variant 13): a bijection of 64-bit words built from two odd multiplications and three xor-shifts. A row's key is the
seed with the epoch and the example index absorbed one after the other; a row's stream is SplitMix64 started at its
key, that is `mix(key + (j + 1) * GOLDEN_GAMMA)` for j = 0, 1, 2, ...
"""

import numpy as np

from t5x_like.data.quiet_tensorflow import tf

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_WORD = 2**64


def _mix(word: tf.Tensor) -> tf.Tensor:
  """The SplitMix64 finaliser, elementwise: uint64 -> uint64."""
  for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
    word = tf.bitwise.bitwise_xor(word, tf.bitwise.right_shift(word, tf.constant(shift, tf.uint64)))
    word = word * tf.constant(factor, tf.uint64)
  return tf.bitwise.bitwise_xor(word, tf.bitwise.right_shift(word, tf.constant(31, tf.uint64)))


def row_keys(seed: int, *words_B: tf.Tensor) -> tf.Tensor:
  """One 64-bit key per row from an integer seed and any number of integer tensors [B]; returns uint64 [B]."""
  gamma = tf.constant(GOLDEN_GAMMA, tf.uint64)
  key_B = _mix(tf.constant((int(seed) + GOLDEN_GAMMA) % _WORD, tf.uint64))
  for word_B in words_B:
    key_B = _mix(tf.bitwise.bitwise_xor(key_B, tf.cast(word_B, tf.uint64)) + gamma)
  return key_B


def bits(key_B: tf.Tensor, n: int) -> tf.Tensor:
  """The first `n` 32-bit words of every row's stream: uint64 [B] -> uint32 [B, n] (low half of each word first)."""
  counters = np.arange(1, (n + 1) // 2 + 1, dtype=np.uint64) * np.uint64(GOLDEN_GAMMA)
  words = _mix(key_B[:, None] + tf.constant(counters))
  return tf.reshape(tf.bitcast(words, tf.uint32), [tf.shape(key_B)[0], 2 * counters.size])[:, :n]


def subsets(bits_BN: tf.Tensor, k: int) -> tf.Tensor:
  """A uniformly random `k`-subset of range(N) per row, ascending: int32 [B, k].

  The `k` places that hold the largest words. Words are 32 bits, so two of N are equal with probability below
  N^2 / 2^33; the lower place wins then.
  """
  # top_k is fast for signed words only; the order of reinterpreted random words is as random as any.
  places = tf.math.top_k(tf.bitcast(bits_BN, tf.int32), k=k, sorted=False).indices
  return tf.sort(places, axis=1)


def shuffled(index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int, size: int) -> tf.Tensor:
  """Where example `index` of an epoch lies in that epoch's random order of range(size): int64 [B] -> int64 [B].

  For every (seed, epoch) a permutation of range(size), computed without materialising it by the cipher of
  `tf.random.experimental.index_shuffle` (called as the raw op because the wrapper pads a matrix of seeds wrongly).
  """
  key_B3 = bits(row_keys(seed, epoch_B), 3)
  last = tf.fill(tf.shape(index_B), tf.constant(size - 1, tf.int64))
  return tf.raw_ops.RandomIndexShuffle(index=index_B, seed=key_B3, max_index=last, rounds=4)


def integers(bits_BN: tf.Tensor, n: int) -> tf.Tensor:
  """Uniform integers 0..n-1 from 32-bit words: uint32 [...] -> int32 [...]; off uniform by less than n / 2^32."""
  scaled = tf.cast(bits_BN, tf.uint64) * tf.constant(n, tf.uint64)
  return tf.cast(tf.bitwise.right_shift(scaled, tf.constant(32, tf.uint64)), tf.int32)
