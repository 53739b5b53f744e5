"""Test statistically whether permutations of range(size) are like random permutations.

Each test gives normal scores, deviations from the expectation in standard deviations, so that one
two-sided threshold holds for all: an order can be too even as well as too uneven. Expectations and
variances hold for positions drawn without replacement, exact for correlations and runs at every
size; chi-squares have the exact expectation, and become normal scores by the cube root of Wilson
and Hilferty (1931).
"""

import collections
import functools
import math
from collections.abc import Callable

import numpy as np

from t5x_like.data import random
from t5x_like.quiet_tensorflow import tf

LAGS = 64
_POSITIONS = 50_000  # examined in an epoch
_EPOCHS = 4
_SEEDS = 4096
_BATCH = 256
_REGIONS = 16

# (index int64 [B], key uint64 [B], size) -> position int64 [B]
Permute = Callable[[tf.Tensor, tf.Tensor, int], tf.Tensor]


def sizes() -> list[int]:
  """Return sizes from 2 to 2^62: powers of two with both neighbours, and sizes of real corpora."""
  exponents = [
    *range(1, 11),
    12,
    13,
    16,
    17,
    20,
    21,
    24,
    25,
    30,
    31,
    33,
    34,
    40,
    41,
    48,
    50,
    55,
    61,
    62,
  ]
  candidates = set()
  for exponent in exponents:
    candidates |= {2**exponent - 1, 2**exponent, 2**exponent + 1}
  candidates |= {
    1_000,
    50_000,
    10**6,
    10**6 + 3,
    976_562_500,
    17_000_000_000,
    10**12,
  }
  return sorted(size for size in candidates if 2 <= size <= random.LARGEST_SIZE)


def study(permute: Permute, size: int, seed: int) -> dict[str, np.ndarray]:
  """Return normal scores, by name, of all tests that a size is large enough for.

  The orders tested are several epochs under `seed` and `seed + 1` (more epochs if `size` is small);
  the first positions tested are drawn with 4,096 consecutive seeds.
  """
  scores_by_test = {}
  epochs = max(_EPOCHS, 2 * _POSITIONS // size)
  first_EN = orders(permute, size, seed, epochs)
  other_EN = orders(permute, size, seed + 1, epochs)
  positions_EN = np.concatenate([first_EN, other_EN])
  if size >= 8:
    lags, _ = lag_scores(positions_EN, size)
    scores_by_test["lags 1 to 64"] = lags
    if size > 16 * LAGS:
      scores_by_test["lags together"] = _chi_square_score((lags**2).sum(), len(lags))[0]
    scores_by_test["runs"] = runs_score(positions_EN)
  if size >= 2 * _REGIONS**2:
    scores_by_test["batches over regions"] = region_score(positions_EN, size)[0]
  if size <= 2 * _REGIONS**2:
    scores_by_test["position by index"] = position_score(positions_EN)
  if size >= 3:
    scores_by_test["epochs"] = agreement_score(first_EN[:-1], first_EN[1:], size)
    scores_by_test["neighbouring seeds"] = agreement_score(first_EN, other_EN, size)
  if 3 <= size < random.LARGEST_SIZE:
    grown_EN = orders(permute, size + 1, seed, epochs)[:, : first_EN.shape[1]]
    scores_by_test["neighbouring sizes"] = agreement_score(first_EN, grown_EN, size, size + 1)
  key_S = keys_of_seeds(seed, _SEEDS)

  def positions_over_seeds(index: int) -> np.ndarray:
    return permute(tf.fill([_SEEDS], np.int64(index)), key_S, size).numpy()

  first_S = positions_over_seeds(0)
  second_S = positions_over_seeds(min(1, size - 1))
  last_S = positions_over_seeds(size - 1)
  scores_by_test["first position over seeds"] = uniform_score(first_S, size)
  scores_by_test["last position over seeds"] = uniform_score(last_S, size)
  if size >= 3:
    scores_by_test["first two over seeds"] = pair_score(first_S, second_S, size)
  return {name: np.atleast_1d(scores) for name, scores in scores_by_test.items()}


def orders(permute: Permute, size: int, seed: int, epochs: int) -> np.ndarray:
  """Return the first positions of some epochs' orders: int64 [epochs, up to 50,000]."""
  count = min(size, _POSITIONS)
  index = np.tile(np.arange(count, dtype=np.int64), epochs)
  key_E = random.row_keys(seed, tf.range(epochs, dtype=tf.int64))
  return permute(tf.constant(index), tf.repeat(key_E, count), size).numpy().reshape(epochs, count)


@functools.cache
def keys_of_seeds(seed: int, count: int) -> tf.Tensor:
  """Return the keys of epoch 0 under consecutive seeds: uint64 [count]."""
  epoch = tf.zeros([1], tf.int64)
  return tf.concat([random.row_keys(number, epoch) for number in range(seed, seed + count)], axis=0)


def lag_scores(positions_EN: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
  """Score serial correlations of positions at lags 1, 2, ..., up to `LAGS`.

  Orders are circular: the last position is followed by the first.

  Returns:
    Normal scores and correlations, one of each per lag.
  """
  centred_EN = _center(positions_EN, size)
  square, _, _ = _moments(size)
  epochs, count = centred_EN.shape
  spectrum = np.fft.rfft(centred_EN)
  product_of_lag = np.fft.irfft((np.abs(spectrum) ** 2).sum(0), n=count)
  product = product_of_lag[1 : min(LAGS, (count - 1) // 2) + 1]
  correlation = product / (epochs * count * square)
  mean, variance = _serial_moments(size, count)
  return (product - epochs * mean) / math.sqrt(epochs * variance), correlation


def runs_score(positions_EN: np.ndarray) -> float:
  """Score the number of runs up and down (Levene and Wolfowitz 1944)."""
  epochs, count = positions_EN.shape
  up = np.diff(positions_EN) > 0
  runs = epochs + (up[:, 1:] != up[:, :-1]).sum()
  return (runs - epochs * (2 * count - 1) / 3) / math.sqrt(epochs * (16 * count - 29) / 90)


def region_score(positions_EN: np.ndarray, size: int) -> tuple[float, float]:
  """Score how evenly batches cover equal regions of the corpus.

  Returns:
    The normal score, and chi-square divided by its degrees of freedom.
  """
  half = positions_EN[:, : max(1, min(positions_EN.shape[1], size // 2))]
  batch = min(_BATCH, size // 4)
  regions = min(_REGIONS, batch // 8)
  batches = half.shape[1] // batch
  region, share = _bins(half[:, : batches * batch], size, regions)
  first_cell = np.arange(len(half) * batches)[:, None] * regions  # a batch has a cell per region
  cell = (region.reshape(-1, batch) + first_cell).ravel()
  counts = np.bincount(cell, minlength=first_cell.size * regions).reshape(-1, batches, regions)
  expected = batch * share
  chi_square = ((counts - expected) ** 2 / expected).sum()
  unread = (size - batches * batch) * share  # in each region, after the last batch
  chi_square += ((counts.sum(1) - batches * expected) ** 2 / unread).sum()
  return _chi_square_score(chi_square * (1 - 1 / size), len(half) * batches * (regions - 1))


def position_score(positions_EN: np.ndarray) -> float:
  """Score how often each index was moved to each position, over whole epochs."""
  epochs, size = positions_EN.shape
  counts = np.zeros((size, size))
  np.add.at(counts, (np.arange(size)[None], positions_EN), 1)
  chi_square = ((counts - epochs / size) ** 2).sum() * size / epochs
  return _chi_square_score(chi_square * (1 - 1 / size), (size - 1) ** 2)[0]


def agreement_score(
  one_EN: np.ndarray, other_EN: np.ndarray, size: int, other_size: int | None = None
) -> float:
  """Score the correlation, index by index, between orders that should be independent.

  The orders may have two sizes, `size` and `other_size`.
  """
  other_size = other_size or size
  square, _, pair = _moments(size)
  other_square, _, other_pair = _moments(other_size)
  epochs, count = one_EN.shape
  product = (_center(one_EN, size) * _center(other_EN, other_size)).sum()
  return product / math.sqrt(
    epochs * (count * square * other_square + count * (count - 1) * pair * other_pair)
  )


def uniform_score(position_S: np.ndarray, size: int) -> float:
  """Score independent positions over 64 regions, or over all positions if they are fewer."""
  region, share = _bins(position_S, size, min(_REGIONS * 4, size))
  expected = len(position_S) * share
  counts = np.bincount(region, minlength=len(share))
  return _chi_square_score(((counts - expected) ** 2 / expected).sum(), len(share) - 1)[0]


def pair_score(one_S: np.ndarray, other_S: np.ndarray, size: int) -> float:
  """Score pairs of different positions over 8 x 8 regions, or over all pairs if they are fewer."""
  regions = min(_REGIONS // 2, size)
  first_regions, share = _bins(one_S, size, regions)
  second_regions, _ = _bins(other_S, size, regions)
  chance = (np.outer(share, share) - np.diag(share) / size) * (size / (size - 1))
  counts = np.bincount(first_regions * regions + second_regions, minlength=regions**2).reshape(
    regions, regions
  )
  possible = chance > 1e-12
  expected = len(one_S) * chance[possible]
  chi_square = ((counts[possible] - expected) ** 2 / expected).sum() + 1e9 * counts[~possible].sum()
  return _chi_square_score(chi_square, possible.sum() - 1)[0]


def permutation_score(permute: Permute, size: int, seed: int, epochs: int) -> float:
  """Score how often each of the size! orders occurred, for a tiny size."""
  counts = collections.Counter(map(tuple, orders(permute, size, seed, epochs).tolist()))
  cells = math.factorial(size)
  expected = epochs / cells
  chi_square = (
    sum((count - expected) ** 2 for count in counts.values()) / expected
    + (cells - len(counts)) * expected
  )
  return _chi_square_score(chi_square, cells - 1)[0]


def _center(positions: np.ndarray, size: int) -> np.ndarray:
  return (positions - (size - 1) / 2) / size


def _moments(size: int) -> tuple[float, float, float]:
  """Return moments of centred positions.

  They are the mean square, the mean fourth power and the mean product of two different positions.
  """
  square = (1 - 1 / size**2) / 12
  fourth = (1 - 1 / size**2) * (3 - 7 / size**2) / 240
  return square, fourth, -square / (size - 1)


def _serial_moments(size: int, count: int) -> tuple[float, float]:
  """Return mean and variance of the sum over i of x[i] * x[(i + lag) % count].

  x is drawn without replacement. The derivation follows Wald and Wolfowitz (1943), who draw all
  values: pairs of the `count` products are identical, share a factor, or share none. The result is
  exact if all lags are below half of `count`.
  """
  square, fourth, pair = _moments(size)
  same = (size * square**2 - fourth) / (size - 1)
  sharing = (2 * fourth - size * square**2) / ((size - 1) * (size - 2))
  apart = (3 * size * square**2 - 6 * fourth) / ((size - 1) * (size - 2) * (size - 3))
  mean = count * pair
  return mean, count * same + 2 * count * sharing + (count**2 - 3 * count) * apart - mean**2


def _bins(positions: np.ndarray, size: int, regions: int) -> tuple[np.ndarray, np.ndarray]:
  """Return the region of each position, and each region's share of all positions."""

  def region_of(x: np.ndarray) -> np.ndarray:
    return np.minimum((x * (regions / size)).astype(np.int64), regions - 1)

  if size > 2**20:  # the shares differ too little to matter
    share = np.full(regions, 1 / regions)
  else:
    share = np.bincount(region_of(np.arange(size)), minlength=regions) / size
  return region_of(positions), share


def _chi_square_score(chi_square: float, freedom: int) -> tuple[float, float]:
  """Return the normal score, and chi-square divided by its degrees of freedom."""
  by_freedom = chi_square / freedom
  spread = 2 / (9 * freedom)
  return (by_freedom ** (1 / 3) - (1 - spread)) / math.sqrt(spread), by_freedom
