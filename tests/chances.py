"""Assertions about random draws, all at one level of significance."""

import numpy as np
from scipy import special

# The probability that a correct program fails with a new seed. Seeds are fixed, so a test that
# passes once keeps passing.
SIGNIFICANCE = 1e-4


def assert_fits(counts, expected=None, *, drawn: float = 0.0):
  """Assert by a two-sided chi-square test that counts are neither too far off nor too exact.

  Args:
    counts: the number of draws of each cell.
    expected: the expected numbers, up to a common factor; None: equal numbers.
    drawn: the share of cells that each row draws without replacement, which lowers the variance.
  """
  counts = np.asarray(counts, np.float64).ravel()
  expected = np.ones(counts.size) if expected is None else np.asarray(expected, np.float64).ravel()
  expected = expected * (counts.sum() / expected.sum())
  assert expected.min() >= 5, f"{expected.min():.1f} expected in a cell are too few for chi-square"
  freedom = counts.size - 1
  statistic = ((counts - expected) ** 2 / expected).sum()
  if drawn:
    statistic *= freedom / counts.size / (1 - drawn)
  upper_tail = special.gammaincc(freedom / 2, statistic / 2)
  p_value = 2 * min(upper_tail, 1 - upper_tail)
  assert p_value > SIGNIFICANCE, (
    f"chi-square {statistic:.1f} of {freedom} degrees of freedom: p = {p_value:.1e}"
  )


def assert_share(successes: int, draws: int, share: float):
  """Assert that a number of successes fits independent draws, by the normal approximation."""
  deviation = (successes - draws * share) / np.sqrt(draws * share * (1 - share))
  assert special.erfc(abs(deviation) / np.sqrt(2)) > SIGNIFICANCE, (
    f"{successes} of {draws} are {successes / draws:.5f}, expected {share:.5f}: "
    f"{deviation:.1f} standard deviations"
  )


def expected_spans(chances, total: int) -> np.ndarray:
  """Return the expected number of spans of each length, [len(chances)], by the renewal equation.

  Spans are drawn until their lengths sum to `total`; the last one is cut.

  Args:
    chances: the probability of each length from 0.
    total: the sum of all lengths.
  """
  chances = np.asarray(chances, np.float64)
  longest = len(chances) - 1
  # The expected number of spans that are drawn while the sum of the earlier lengths is s.
  draws_at_sum = np.zeros(total)
  counts = np.zeros(longest + 1)
  for s in range(total):
    arrivals = 1.0 if s == 0 else 0.0
    for length in range(1, min(s, longest) + 1):
      arrivals += draws_at_sum[s - length] * chances[length]
    draws_at_sum[s] = arrivals / (1 - chances[0])  # spans of length 0 stay at this sum
    cut_lengths = np.minimum(np.arange(longest + 1), total - s)
    np.add.at(counts, cut_lengths, draws_at_sum[s] * chances)
  return counts
