"""Confidence intervals and paired tests for every metric by resampling; Wilson's for shares."""

import warnings
from typing import Any

import numpy as np

from t5x_like.metrics.metric import AdditiveMetric, Metric

LEVEL = 95.0
SAMPLES = 1000  # the number of draws for intervals in tables
_PERCENTILES = (50 - LEVEL / 2, 50 + LEVEL / 2)


def draw_scores(
  metric: Metric, rows_NC: np.ndarray, samples: int, seed: int
) -> dict[str, np.ndarray]:
  """Return the scores of samples of examples, drawn with replacement.

  Args:
    metric: the metric.
    rows_NC: the rows of the examples.
    samples: the number of draws.
    seed: the seed of the draws; equal seeds and numbers of examples draw the same examples.

  Returns:
    The scores [S] by name; NaN where a sample leaves a score undefined.
  """
  rng = np.random.default_rng(seed)
  num_examples = len(rows_NC)
  if isinstance(metric, AdditiveMetric):
    sums = []
    for _ in range(samples):
      drawn_N = rng.integers(num_examples, size=num_examples)
      sums.append(np.bincount(drawn_N, minlength=num_examples) @ rows_NC)
    return metric.scores_of_sums(np.array(sums))
  draws = []
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # scikit-learn's and scipy's of samples with one label
    for _ in range(samples):
      draws.append(metric.scores(rows_NC[rng.integers(num_examples, size=num_examples)]))
  return {name: np.array([draw[name] for draw in draws]) for name in draws[0]}


def percentile_interval(scores_S: np.ndarray) -> dict[str, float] | None:
  """Return `{"low", "high", "standard_error"}` of the finite scores of samples; None without any.

  The limits are percentiles of the scores (Efron & Tibshirani 1993, chapter 13).
  """
  defined = scores_S[np.isfinite(scores_S)]
  if not len(defined):
    return None
  low, high = np.percentile(defined, _PERCENTILES)
  error = float(defined.std(ddof=1)) if len(defined) > 1 else 0.0
  return {"low": float(low), "high": float(high), "standard_error": error}


def bootstrap(metric: Metric, rows_NC: np.ndarray, samples: int, seed: int) -> dict[str, Any]:
  """Compute percentile intervals of a metric's scores.

  Args:
    metric, rows_NC, samples, seed: see `draw_scores`.

  Returns:
    `intervals`: by score, see `percentile_interval`. `undefined`: by score, the number of samples
      left out because the score is undefined.
  """
  intervals = {}
  undefined = {}
  for name, scores_S in draw_scores(metric, rows_NC, samples, seed).items():
    intervals[name] = percentile_interval(scores_S)
    num_undefined = int(np.sum(~np.isfinite(scores_S)))
    if num_undefined:
      undefined[name] = num_undefined
  result = {
    "method": "percentile bootstrap over examples",
    "samples": samples,
    "seed": seed,
    "level": LEVEL,
    "intervals": intervals,
  }
  if undefined:
    result["undefined"] = undefined
  return result


def score_intervals(metric: Metric, rows_NC: np.ndarray) -> dict[str, dict[str, float]]:
  """Return the 95 % interval of each score for a table, `{"low", "high", "samples"}`.

  They are percentile intervals of `SAMPLES` samples, from seed 0. Scores without an interval are
  left out. Resampling gives no width where every answer is right, or none: a share of 100 or 0 %
  has Wilson's interval instead, without `samples`.
  """
  intervals: dict[str, dict[str, float]] = {}
  for name, interval in bootstrap(metric, rows_NC, SAMPLES, seed=0)["intervals"].items():
    if interval is None:
      continue
    is_constant = interval["low"] == interval["high"]
    if is_constant and interval["low"] in (0.0, 100.0):
      intervals[name] = wilson(interval["low"], len(rows_NC))
    else:
      intervals[name] = {"low": interval["low"], "high": interval["high"], "samples": SAMPLES}
  return intervals


def wilson(percent: float, examples: int) -> dict[str, float]:
  """Return Wilson's (1927) interval `{"low", "high"}` of a share of examples, in percent."""
  from scipy import stats

  num_right = round(percent / 100 * examples)
  interval = stats.binomtest(num_right, examples).proportion_ci(LEVEL / 100, method="wilson")
  return {"low": 100 * float(interval.low), "high": 100 * float(interval.high)}


def difference_interval(draws_S: np.ndarray, examples: int) -> dict[str, float] | None:
  """Return the interval `{"low", "high"}` of a difference of two mean scores, in percent.

  Resampling gives no width where two systems score alike on every example. The share of examples on
  which they differ is then at most the high limit of Wilson's interval of 0 %, and so is the
  difference of their means, whichever is better.

  Args:
    draws_S: the differences of samples of the examples; NaN where undefined.
    examples: the number of examples.

  Returns:
    None if no difference is defined.
  """
  interval = percentile_interval(draws_S)
  if interval is None:
    return None
  if interval["low"] == interval["high"] == 0:
    limit = wilson(0, examples)["high"]
    return {"low": -limit, "high": limit}
  return {"low": interval["low"], "high": interval["high"]}


def format_interval(interval: dict[str, float]) -> str:
  """Format an interval in percent, as it stands after its score."""
  return f" ({interval['low']:.1f} to {interval['high']:.1f})"


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
  rows_2NC = np.stack([first_NC, second_NC])
  num_examples = len(first_NC)
  example_N = np.arange(num_examples)

  def score_differences(before_NC: np.ndarray, after_NC: np.ndarray) -> dict[str, float]:
    before = metric.scores(before_NC)
    after = metric.scores(after_NC)
    return {name: after[name] - before[name] for name in before}

  observed = score_differences(first_NC, second_NC)
  exchanged = []
  resampled = []
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # as in `draw_scores`
    for _ in range(samples):
      system_N = rng.integers(2, size=num_examples)
      one_NC = rows_2NC[system_N, example_N]
      other_NC = rows_2NC[1 - system_N, example_N]
      exchanged.append(score_differences(one_NC, other_NC))
      drawn_N = rng.integers(num_examples, size=num_examples)
      resampled.append(score_differences(first_NC[drawn_N], second_NC[drawn_N]))
  differences = {}
  for name, difference in observed.items():
    exchanged_differences = np.array([draw[name] for draw in exchanged])
    resampled_differences = np.array([draw[name] for draw in resampled])
    differences[name] = _test_difference(difference, exchanged_differences, resampled_differences)
  return {
    "method": "approximate randomisation (two-sided p-value), paired percentile bootstrap "
    "(interval)",
    "samples": samples,
    "seed": seed,
    "level": LEVEL,
    "differences": differences,
  }


def _test_difference(
  difference: float, exchanged: np.ndarray, resampled: np.ndarray
) -> dict[str, float] | None:
  """Return the p-value and the interval of a difference of scores; None if it is undefined."""
  if not np.isfinite(difference):
    return None
  exchanged = exchanged[np.isfinite(exchanged)]
  # allow for rounding: the sums are taken in another order
  is_as_large = np.abs(exchanged) >= abs(difference) - 1e-9
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", RuntimeWarning)  # all differences are NaN
    low, high = np.nanpercentile(resampled, _PERCENTILES)
  result = {
    "difference": float(difference),
    "p_value": float((is_as_large.sum() + 1) / (len(exchanged) + 1)),
  }
  if np.isfinite(low):
    result |= {"low": float(low), "high": float(high)}
  return result
