"""Confidence intervals and paired tests for every metric, by resampling the rows of its examples;
shares also have Wilson's."""

import warnings
from typing import Any

import numpy as np

from t5x_like.metrics.metric import Metric

LEVEL = 95.0


def bootstrap(metric: Metric, rows_NC: np.ndarray, samples: int, seed: int) -> dict[str, Any]:
  """Compute percentile intervals (Efron & Tibshirani 1993, chapter 13) from `samples` draws with
  replacement.

  Returns:
    `intervals`: by score, `{"low", "high", "standard_error"}`, or None if no sample defines the
      score. `undefined`: by score, the number of samples left out because the score is undefined.
  """
  rng = np.random.default_rng(seed)
  draws = [
    metric.scores(rows_NC[rng.integers(len(rows_NC), size=len(rows_NC))]) for _ in range(samples)
  ]
  intervals = {}
  undefined = {}
  for name in draws[0]:
    values = np.array([draw[name] for draw in draws])
    defined = values[np.isfinite(values)]
    if len(defined) < len(values):
      undefined[name] = len(values) - len(defined)
    if not len(defined):
      intervals[name] = None
      continue
    low, high = np.percentile(defined, [50 - LEVEL / 2, 50 + LEVEL / 2])
    error = float(defined.std(ddof=1)) if len(defined) > 1 else 0.0
    intervals[name] = {"low": float(low), "high": float(high), "standard_error": error}
  return {
    "method": "percentile bootstrap over examples",
    "samples": samples,
    "seed": seed,
    "level": LEVEL,
    "intervals": intervals,
    **({"undefined": undefined} if undefined else {}),
  }


def wilson(percent: float, examples: int) -> dict[str, float]:
  """Return the interval `{"low", "high"}` (Wilson 1927), in percent, of a share of independent
  examples."""
  from scipy import stats

  hits = round(percent / 100 * examples)
  interval = stats.binomtest(hits, examples).proportion_ci(LEVEL / 100, method="wilson")
  return {"low": 100 * float(interval.low), "high": 100 * float(interval.high)}


def paired_test(
  metric: Metric, first_NC: np.ndarray, second_NC: np.ndarray, samples: int, seed: int
) -> dict[str, Any]:
  """Test whether the second system's scores differ from the first's, on the same examples.

  The two-sided p-value uses approximate randomisation (Noreen 1989; Riezler & Maxwell 2005): each
  of `samples` trials exchanges the two systems' predictions for each example with probability 1/2.
  The p-value is the share of trials, the actual systems included, whose scores differ by at least
  as much as the systems'. The interval of the difference uses a paired bootstrap (Koehn 2004): both
  systems are scored on the same resampled examples.

  Returns:
    `differences`: by score, `{"difference": second - first, "p_value", "low", "high"}`, or None if
      it is undefined.
  """
  rng = np.random.default_rng(seed)
  stacked_2NC = np.stack([first_NC, second_NC])
  each = np.arange(len(first_NC))

  def differences(one_NC: np.ndarray, other_NC: np.ndarray) -> dict[str, float]:
    before = metric.scores(one_NC)
    after = metric.scores(other_NC)
    return {name: after[name] - before[name] for name in before}

  observed = differences(first_NC, second_NC)
  exchanged = []
  redrawn = []
  for _ in range(samples):
    side = rng.integers(2, size=len(each))
    exchanged.append(differences(stacked_2NC[side, each], stacked_2NC[1 - side, each]))
    drawn = rng.integers(len(each), size=len(each))
    redrawn.append(differences(first_NC[drawn], second_NC[drawn]))
  return {
    "method": "approximate randomisation (two-sided p-value), paired percentile bootstrap "
    "(interval)",
    "samples": samples,
    "seed": seed,
    "level": LEVEL,
    "differences": {name: _compared(name, observed[name], exchanged, redrawn) for name in observed},
  }


def _compared(
  name: str, difference: float, exchanged: list[dict], redrawn: list[dict]
) -> dict[str, float] | None:
  if not np.isfinite(difference):
    return None
  chance = np.array([draw[name] for draw in exchanged])
  chance = chance[np.isfinite(chance)]
  # allow for rounding: the sums are taken in another order
  at_least = np.abs(chance) >= abs(difference) - 1e-9
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", RuntimeWarning)  # all values are NaN
    low, high = np.nanpercentile([draw[name] for draw in redrawn], [50 - LEVEL / 2, 50 + LEVEL / 2])
  return {
    "difference": float(difference),
    "p_value": float((at_least.sum() + 1) / (len(chance) + 1)),
    **({"low": float(low), "high": float(high)} if np.isfinite(low) else {}),
  }
