"""Stochastic gradient descent, with or without momentum."""

import optax

from t5x_like.training.optimizer import Moments, at_rate
from t5x_like.training.schedule import Schedule


def make(schedule: Schedule, *, momentum: float = 0.0, mu_dtype: Moments = "float32") -> optax.GradientTransformation:
  return optax.chain(
    optax.trace(momentum, accumulator_dtype=mu_dtype) if momentum else optax.identity(), at_rate(schedule)
  )
