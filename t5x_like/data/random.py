"""Random numbers that are a pure function of (seed, epoch, example index), for whole batches.

A counter-based generator: no state passes from one draw to the next, so any row of any batch can be
made anywhere, in any order, on any number of hosts, with the same result. The mixing function is
the SplitMix64 finaliser (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
OOPSLA 2014; the constants are David Stafford's variant 13): a bijection of 64-bit words built from
two odd multiplications and three xor-shifts. A row's key is the seed with the epoch and the example
index absorbed one after the other; a row's stream is SplitMix64 started at its key, that is
`mix(key + (j + 1) * GOLDEN_GAMMA)` for j = 0, 1, 2, ...
"""

from __future__ import annotations

import math

import numpy as np

from t5x_like.quiet_tensorflow import tf

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
LARGEST_SIZE = 2**62
_WORD = 2**64
_MAX_SORTED_SIZE = 256
# One for each round: the first words of SplitMix64 started at 0.
_ROUND_CONSTANTS = np.array(
  [
    0xE220A8397B1DCDAF,
    0x6E789E6AA1B965F4,
    0x06C45D188009454F,
    0xF88BB8A8724C81EC,
    0x1B39896A51A8749B,
    0x53CB9F0C747EA2EA,
    0x2C829ABE1F4532E1,
    0xC584133AC916AB3C,
  ],
  np.uint64,
)


def _mix(word: tf.Tensor) -> tf.Tensor:
  """Apply the SplitMix64 finaliser elementwise: uint64 -> uint64."""
  for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
    word = tf.bitwise.bitwise_xor(word, tf.bitwise.right_shift(word, tf.constant(shift, tf.uint64)))
    word = word * tf.constant(factor, tf.uint64)
  return tf.bitwise.bitwise_xor(word, tf.bitwise.right_shift(word, tf.constant(31, tf.uint64)))


def row_keys(seed: int, *words_B: tf.Tensor) -> tf.Tensor:
  """Return a 64-bit key per row, uint64 [B].

  Args:
    seed: a run's seed or, with a row's key as the word, the number of one of the row's draws, which
      are independent if their numbers differ.
    words_B: integer tensors [B], absorbed one after the other.
  """
  key_B = _mix(tf.constant((int(seed) + GOLDEN_GAMMA) % _WORD, tf.uint64))
  for word_B in words_B:
    key_B = _absorb(key_B, tf.cast(word_B, tf.uint64))
  return key_B


def _absorb(key_B: tf.Tensor, word_B: tf.Tensor) -> tf.Tensor:
  """Return the key with a word absorbed into it."""
  return _mix(tf.bitwise.bitwise_xor(key_B, word_B) + tf.constant(GOLDEN_GAMMA, tf.uint64))


def bits(key_B: tf.Tensor, n: int) -> tf.Tensor:
  """Return the first `n` 32-bit words of each row's stream: uint64 [B] -> uint32 [B, n].

  The low half of a 64-bit word comes first.
  """
  counters = np.arange(1, (n + 1) // 2 + 1, dtype=np.uint64) * np.uint64(GOLDEN_GAMMA)
  words = _mix(key_B[:, None] + tf.constant(counters))
  return tf.reshape(tf.bitcast(words, tf.uint32), [tf.shape(key_B)[0], 2 * counters.size])[:, :n]


def subsets(bits_BN: tf.Tensor, k: int) -> tf.Tensor:
  """Draw a uniformly random `k`-subset of range(N) per row, ascending: int32 [B, k].

  The subset is the positions of the `k` largest words. Words have 32 bits, so two of N are equal
  with probability below N^2 / 2^33; then the lower position wins.
  """
  # top_k is fast for signed words only. The order of reinterpreted random words is as random.
  positions = tf.math.top_k(tf.bitcast(bits_BN, tf.int32), k=k, sorted=False).indices
  return tf.sort(positions, axis=1)


def shuffle(index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int, size: int) -> tf.Tensor:
  """Return the examples at positions of epochs' random orders of range(size).

  int64 [B], int64 [B] -> int64 [B].

  An order is `permute` with a key of (seed, epoch), never materialised;
  docs/explanation/permutation.md defines it, with tests. Only the seed's value modulo 2^64 counts.
  Raises as `permute`.
  """
  return permute(index_B, row_keys(seed, epoch_B), size)


def permute(index_B: tf.Tensor, key_B: tf.Tensor, size: int, inverse: bool = False) -> tf.Tensor:
  """Map an index by the permutation of range(size) that the key selects, or by its inverse.

  int64 [B], uint64 [B] -> int64 [B]. `inverse` selects the inverse.

  Sizes up to 256 sort keyed words; larger ones use a Feistel network whose halves are digits of
  mixed radix (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002), with cycle
  walking for values outside range(size).

  Raises:
    ValueError: a size outside 1..2^62.
    tf.errors.InvalidArgumentError: an index outside range(size); inside `tf.function`, when it
      runs.
  """
  if not 1 <= size <= LARGEST_SIZE:
    raise ValueError(f"size: found {size}, expected 1 to 2^62")
  is_inside = tf.reduce_all((index_B >= 0) & (index_B < size))
  message = [
    f"index: expected each in [0, {size}), found",
    tf.reduce_min(index_B),
    "to",
    tf.reduce_max(index_B),
  ]
  # The raw operation: `tf.debugging.Assert` adds a conditional, which costs more than it saves.
  assertion = tf.raw_ops.Assert(condition=is_inside, data=message, summarize=1)
  with tf.control_dependencies([assertion]):
    index_B = tf.identity(index_B)
  # A corpus of another size has another order.
  key_B = _absorb(key_B, tf.constant(size, tf.uint64))
  if size <= _MAX_SORTED_SIZE:
    return _permute_by_sorting(index_B, key_B, size, inverse)
  return _permute_by_cipher(index_B, key_B, size, inverse)


def _permute_by_sorting(
  index_B: tf.Tensor, key_B: tf.Tensor, size: int, inverse: bool
) -> tf.Tensor:
  """Return the position of the `index`-th largest among the first `size` words of the key's stream.

  Words are compared as signed numbers.
  """
  key_U, order_number_B = tf.unique(key_B)  # rows of one epoch share their order
  counters_N = tf.constant(np.arange(1, size + 1, dtype=np.uint64) * np.uint64(GOLDEN_GAMMA))
  words_UN = tf.bitcast(_mix(key_U[:, None] + counters_N), tf.int64)
  # Among equal words the lower position comes first.
  order_UN = tf.math.top_k(words_UN, k=size).indices
  if inverse:
    order_UN = tf.argsort(order_UN)
  location_B2 = tf.stack([tf.cast(order_number_B, tf.int64), index_B], axis=1)
  return tf.cast(tf.gather_nd(order_UN, location_B2), tf.int64)


def _permute_by_cipher(index_B: tf.Tensor, key_B: tf.Tensor, size: int, inverse: bool) -> tf.Tensor:
  """Apply the Feistel network with cycle walking."""
  radices = _radices(size)
  high, low = radices
  position_B = _feistel(tf.cast(index_B, tf.uint64), key_B, radices, inverse)
  if high * low > size:
    end = tf.constant(size, tf.uint64)

    def walk(position_B: tf.Tensor) -> tuple[tf.Tensor]:
      outside = tf.where(position_B >= end)
      moved = _feistel(
        tf.gather_nd(position_B, outside), tf.gather_nd(key_B, outside), radices, inverse
      )
      return (tf.tensor_scatter_nd_update(position_B, outside, moved),)

    (position_B,) = tf.while_loop(
      lambda position_B: tf.reduce_any(position_B >= end), walk, (position_B,)
    )
  return tf.cast(position_B, tf.int64)


def _radices(size: int) -> tuple[int, int]:
  """Return two numbers near sqrt(`size`) whose product is `size` or slightly more.

  The less the product exceeds `size`, the rarer is cycle walking.
  """
  root = math.isqrt(size - 1) + 1
  high = min(range(root, min(2 * root, root + 1024)), key=lambda high: -size % high)
  return high, -(-size // high)


def _feistel(
  value_B: tf.Tensor, key_B: tf.Tensor, radices: tuple[int, int], inverse: bool
) -> tf.Tensor:
  """Permute range(high * low) by the key, or invert that: uint64 [B], uint64 [B] -> uint64 [B].

  With value = left * low + right, each round adds to one digit a random function of the other: word
  number `other` of the SplitMix64 stream that starts at the round's key.
  """
  radix = [tf.constant(number, tf.uint64) for number in radices]
  low = radix[1]
  left_B = value_B // low
  digits = [left_B, value_B - left_B * low]
  half = tf.constant(32, tf.uint64)
  gamma = tf.constant(GOLDEN_GAMMA, tf.uint64)
  round_key_RB = tf.unstack(key_B + tf.constant(_ROUND_CONSTANTS, tf.uint64)[:, None])
  rounds = list(enumerate(round_key_RB))
  if inverse:
    rounds.reverse()
  for number, round_key_B in rounds:
    changed = number % 2
    word_B = _mix(round_key_B + digits[1 - changed] * gamma)
    # The upper half of the word, scaled to the digit's range (Lemire, "Fast Random Integer
    # Generation", 2019).
    upper_B = tf.bitwise.right_shift(word_B, half)
    added_B = tf.bitwise.right_shift(upper_B * radix[changed], half)
    # Modulo the radix: an unsigned difference wraps where it is negative.
    if inverse:
      moved_B = digits[changed] - added_B
      digits[changed] = tf.minimum(moved_B, moved_B + radix[changed])
    else:
      moved_B = digits[changed] + added_B
      digits[changed] = tf.minimum(moved_B, moved_B - radix[changed])
  return digits[0] * low + digits[1]


def integers(bits_BN: tf.Tensor, n: int) -> tf.Tensor:
  """Map 32-bit words to integers 0..n-1: uint32 [...] -> int32 [...].

  They are uniform to within n / 2^32.
  """
  scaled = tf.cast(bits_BN, tf.uint64) * tf.constant(n, tf.uint64)
  return tf.cast(tf.bitwise.right_shift(scaled, tf.constant(32, tf.uint64)), tf.int32)
