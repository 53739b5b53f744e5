"""Fit a ladder: losses by parameters and tokens, and the best rate by parameters."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy.optimize import least_squares

from t5x_like.errors import UserError

_STARTS = [(share, power) for share in (0.05, 0.4, 0.7, 0.9) for power in (0.15, 0.3, 0.6)]
_MAX_POWER = 2.0
_DELTA = 1e-2  # relative error of a loss beyond which its weight falls


@dataclasses.dataclass(frozen=True)
class Point:
  """A trained size: parameters, target tokens seen, loss in nats."""

  N: float
  D: float
  loss: float


@dataclasses.dataclass(frozen=True)
class Law:
  """`E + A / N^a + B / D^b` (Hoffmann et al. 2022, arXiv:2203.15556, equation 2).

  B is 0 if all runs see as many tokens.
  """

  E: float
  A: float
  a: float
  B: float = 0.0
  b: float = 0.0

  def __call__(self, N: float, D: float) -> float:
    return self.E + self.A * N**-self.a + self.B * D**-self.b


def fit(points: Sequence[Point]) -> Law:
  """Fit a law by the Huber loss of logarithms, as in section 3.3 of the paper, from several starts.

  Raises:
    UserError: fewer points than coefficients, or fewer than three sizes, or two numbers of tokens.
  """
  N, D, losses = np.asarray([(point.N, point.D, point.loss) for point in points]).T
  has_tokens = len(set(D)) > 1
  size_count = len(set(N))
  token_counts = len(set(D))
  num_coefficients = 5 if has_tokens else 3
  if size_count < 3 or token_counts == 2 or len(points) < num_coefficients:
    raise UserError(
      f"the fit has {size_count} sizes, {token_counts} numbers of steps and {len(points)} runs, "
      "expected 3 or more sizes, and one number of steps or 3 or more, with "
      f"{num_coefficients} runs or more; extend --sizes or --steps"
    )
  # The geometric means, as units of N and D, keep the coefficients nearly independent.
  middle_N = np.exp(np.mean(np.log(N)))
  middle_D = np.exp(np.mean(np.log(D)))

  def law(x):
    term = x[1] - x[2] * np.log(N / middle_N)
    total = np.exp(x[0]) + np.exp(term)
    if has_tokens:
      total += np.exp(x[3] - x[4] * np.log(D / middle_D))
    return total

  def errors(x):
    return np.log(law(x)) - np.log(losses)

  low = [-20.0, -20.0, 0.0, -20.0, 0.0]
  high = [np.log(losses.min()), 10.0, _MAX_POWER, 10.0, _MAX_POWER]
  best_fit = None
  for share, power in _STARTS:
    log_share = np.log(losses.mean() * (1 - share) / (2 if has_tokens else 1))
    start = np.clip(
      [np.log(share * losses.min()), log_share, power, log_share, power],
      np.add(low, 1e-6),
      np.subtract(high, 1e-6),
    )
    candidate = least_squares(
      errors,
      start[:num_coefficients],
      bounds=(low[:num_coefficients], high[:num_coefficients]),
      loss="huber",
      f_scale=_DELTA,
      xtol=1e-12,
      ftol=1e-12,
      gtol=1e-12,
      max_nfev=4000,
    )
    if best_fit is None or candidate.cost < best_fit.cost:
      best_fit = candidate
  x = best_fit.x
  E = float(np.exp(x[0]))
  A = float(np.exp(x[1]) * middle_N ** x[2])
  if not has_tokens:
    return Law(E, A, float(x[2]))
  return Law(E, A, float(x[2]), float(np.exp(x[3]) * middle_D ** x[4]), float(x[4]))


def spread(points: Sequence[Point], N: float, D: float) -> tuple[float, float] | None:
  """Return the least and greatest prediction of fits without one run; None if too few are left."""
  predictions = []
  for left_out in range(len(points)):
    remaining = [point for number, point in enumerate(points) if number != left_out]
    try:
      predictions.append(fit(remaining)(N, D))
    except UserError:
      return None
  return min(predictions), max(predictions)


def best_rate(rates: Sequence[float], losses: Sequence[float]) -> tuple[float, bool]:
  """Return (the rate of the least loss, whether rates on both sides of it are worse).

  It is the vertex of the parabola through the best rate and its neighbours, over the logarithm of
  the rate; the best rate itself at an end, and where a neighbour diverged.
  """
  order = np.argsort(rates)
  x = np.log(np.asarray(rates)[order])
  y = np.asarray(losses)[order]
  best = int(np.nanargmin(np.where(np.isfinite(y), y, np.nan)))
  if not 0 < best < len(x) - 1:
    return float(np.exp(x[best])), False
  near = slice(best - 1, best + 2)
  if not np.all(np.isfinite(y[near])):
    return float(np.exp(x[best])), True
  square, linear, _ = np.polyfit(x[near] - x[best], y[near], 2)
  return float(np.exp(x[best] + (-linear / (2 * square) if square > 0 else 0.0))), True


def rate_law(sizes: Sequence[float], rates: Sequence[float]) -> tuple[float, float]:
  """Return (factor, power) of `rate = factor * N^power`, by least squares of logarithms.

  The power of a single size is 0.
  """
  if len(sizes) < 2:
    return float(rates[0]), 0.0
  power, factor = np.polyfit(np.log(sizes), np.log(rates), 1)
  return float(np.exp(factor)), float(power)
