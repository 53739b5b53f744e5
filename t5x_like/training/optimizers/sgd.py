"""Stochastic gradient descent, with or without momentum."""

import optax

from t5x_like.training.optimizer import at_rate
from t5x_like.training.schedule import Schedule


def make(schedule: Schedule, *, momentum: float = 0.0) -> optax.GradientTransformation:
  return optax.chain(optax.trace(momentum) if momentum else optax.identity(), at_rate(schedule))
