"""Test random draws by chi-square: two-sided, at one significance for all."""

import numpy as np
from scipy import special

# seeds are fixed, so a test that passes keeps passing; this is the chance that a new seed fails
SIGNIFICANCE = 1e-4


def assert_fits(counts, expected=None, *, drawn: float = 0.0):
  """Assert that counts are as expected, neither further off than chance allows nor closer.

  Args:
    counts: the draws of each cell.
    expected: the expected draws, up to one factor; None is the same for all.
    drawn: the share of cells that every row draws without replacement, which lowers the variance.
  """
  counts = np.asarray(counts, np.float64).ravel()
  expected = np.ones(counts.size) if expected is None else np.asarray(expected, np.float64).ravel()
  expected = expected * (counts.sum() / expected.sum())
  assert expected.min() >= 5, f"{expected.min():.1f} expected in a cell are too few for chi-square"
  freedom = counts.size - 1
  statistic = ((counts - expected) ** 2 / expected).sum()
  if drawn:
    statistic *= freedom / counts.size / (1 - drawn)
  beyond = special.gammaincc(freedom / 2, statistic / 2)
  chance = 2 * min(beyond, 1 - beyond)
  assert chance > SIGNIFICANCE, (
    f"chi-square {statistic:.1f} of {freedom} degrees of freedom: chance {chance:.1e}"
  )


def assert_share(successes: int, draws: int, share: float):
  """Assert that a number of successes fits independent draws, by the normal approximation."""
  deviation = (successes - draws * share) / np.sqrt(draws * share * (1 - share))
  assert special.erfc(abs(deviation) / np.sqrt(2)) > SIGNIFICANCE, (
    f"{successes} of {draws} are {successes / draws:.5f}, expected {share:.5f}: "
    f"{deviation:.1f} standard deviations"
  )


def expected_spans(chances, total: int) -> np.ndarray:
  """Return the mean number of spans of each length in spans that sum to `total`: [len(chances)].

  The last span is cut.
  `chances[k]` is that of length k; the renewal equation, and not a simulation.
  """
  chances = np.asarray(chances, np.float64)
  longest = len(chances) - 1
  # spans drawn when the sum is so and so much
  drawn_at = np.zeros(total)
  counts = np.zeros(longest + 1)
  for so_far in range(total):
    before = sum(drawn_at[so_far - k] * chances[k] for k in range(1, min(so_far, longest) + 1)) + (
      so_far == 0
    )
    drawn_at[so_far] = before / (1 - chances[0])
    np.add.at(
      counts, np.minimum(np.arange(longest + 1), total - so_far), drawn_at[so_far] * chances
    )
  return counts
