"""Fit a ladder: loss by parameters and tokens, and best learning rate by parameters."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy.optimize import least_squares

from t5x_like.errors import UserError

# The starts of a fit: E as a share of the least loss, and the powers a and b.
_STARTS = [(share, power) for share in (0.05, 0.4, 0.7, 0.9) for power in (0.15, 0.3, 0.6)]
_MAX_POWER = 2.0
# Huber's delta: the relative error of a loss beyond which the penalty grows linearly.
_DELTA = 1e-2


@dataclasses.dataclass(frozen=True)
class Point:
  """A training run: N parameters, D target tokens seen, and the loss in nats."""

  N: float
  D: float
  loss: float


@dataclasses.dataclass(frozen=True)
class Law:
  """`E + A / N^a + B / D^b` (Hoffmann et al. 2022, arXiv:2203.15556, equation 2).

  B is 0 if all runs see the same number of tokens.
  """

  E: float
  A: float
  a: float
  B: float = 0.0
  b: float = 0.0

  def __call__(self, N: float, D: float) -> float:
    return self.E + self.A * N**-self.a + self.B * D**-self.b


def fit(points: Sequence[Point]) -> Law:
  """Fit a law by the Huber loss of log losses, from several starts, as in the paper's section 3.3.

  Raises:
    UserError: there are fewer points than coefficients, fewer than three sizes, or exactly two
      numbers of tokens.
  """
  N, D, losses = np.asarray([(point.N, point.D, point.loss) for point in points]).T
  num_sizes = len(set(N))
  num_token_counts = len(set(D))
  num_coefficients = 5 if num_token_counts > 1 else 3
  if num_sizes < 3 or num_token_counts == 2 or len(points) < num_coefficients:
    raise UserError(
      f"the fit has {num_sizes} sizes, {num_token_counts} numbers of steps and {len(points)} runs, "
      "expected 3 or more sizes, and one number of steps or 3 or more, with "
      f"{num_coefficients} runs or more; extend --sizes or --steps"
    )
  # N and D in units of their geometric means keep the coefficients nearly independent.
  unit_N = np.exp(np.mean(np.log(N)))
  unit_D = np.exp(np.mean(np.log(D)))
  coefficients = _fit_coefficients(N / unit_N, D / unit_D, losses, num_coefficients)
  log_E, log_A, a = coefficients[:3]
  E = float(np.exp(log_E))
  A = float(np.exp(log_A) * unit_N**a)
  if num_coefficients == 3:
    return Law(E, A, float(a))
  log_B, b = coefficients[3:]
  B = float(np.exp(log_B) * unit_D**b)
  return Law(E, A, float(a), B, float(b))


def _fit_coefficients(
  N: np.ndarray, D: np.ndarray, losses: np.ndarray, num_coefficients: int
) -> np.ndarray:
  """Return the best [log E, log A, a] for 3 coefficients, or [log E, log A, a, log B, b] for 5."""
  has_token_term = num_coefficients == 5

  def log_errors(coefficients):
    log_E, log_A, a = coefficients[:3]
    predicted = np.exp(log_E) + np.exp(log_A - a * np.log(N))
    if has_token_term:
      log_B, b = coefficients[3:]
      predicted += np.exp(log_B - b * np.log(D))
    return np.log(predicted) - np.log(losses)

  num_terms = 2 if has_token_term else 1
  low = [-20.0, -20.0, 0.0, -20.0, 0.0]
  high = [np.log(losses.min()), 10.0, _MAX_POWER, 10.0, _MAX_POWER]
  best_fit = None
  for share, power in _STARTS:
    log_E = np.log(share * losses.min())
    log_term = np.log(losses.mean() * (1 - share) / num_terms)
    start = np.clip(
      [log_E, log_term, power, log_term, power],
      np.add(low, 1e-6),
      np.subtract(high, 1e-6),
    )
    candidate = least_squares(
      log_errors,
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
  return best_fit.x


def leave_one_out_range(points: Sequence[Point], N: float, D: float) -> tuple[float, float] | None:
  """Return the least and greatest loss predicted by fits that each leave out one run.

  Return None if too few runs are left to fit.
  """
  predictions = []
  for left_out in range(len(points)):
    remaining = [point for number, point in enumerate(points) if number != left_out]
    try:
      predictions.append(fit(remaining)(N, D))
    except UserError:
      return None
  return min(predictions), max(predictions)


def best_rate(rates: Sequence[float], losses: Sequence[float]) -> tuple[float, bool]:
  """Return (the best learning rate, whether rates on both sides of it were tried).

  The best rate is the vertex of the parabola through the rate of the least loss and its two
  neighbours, over the logarithm of the rate. It is the rate of the least loss itself if that is at
  an end, or if a neighbour diverged.
  """
  order = np.argsort(rates)
  x = np.log(np.asarray(rates)[order])
  y = np.asarray(losses)[order]
  best = int(np.nanargmin(np.where(np.isfinite(y), y, np.nan)))
  if not 0 < best < len(x) - 1:
    return float(np.exp(x[best])), False
  neighbours = slice(best - 1, best + 2)
  if not np.all(np.isfinite(y[neighbours])):
    return float(np.exp(x[best])), True
  quadratic, linear, _ = np.polyfit(x[neighbours] - x[best], y[neighbours], 2)
  vertex = -linear / (2 * quadratic) if quadratic > 0 else 0.0
  return float(np.exp(x[best] + vertex)), True


def rate_law(sizes: Sequence[float], rates: Sequence[float]) -> tuple[float, float]:
  """Fit `rate = factor * N^power` by least squares of logarithms; return (factor, power).

  With a single size, the power is 0.
  """
  if len(sizes) < 2:
    return float(rates[0]), 0.0
  power, log_factor = np.polyfit(np.log(sizes), np.log(rates), 1)
  return float(np.exp(log_factor)), float(power)
