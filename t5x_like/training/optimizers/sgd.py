"""Stochastic gradient descent, with or without momentum."""

import optax

from t5x_like.slots import NonNegativeFloat, Rate
from t5x_like.training.optimizer import Decay, Moments, at_rate
from t5x_like.training.schedule import Schedule


def make(
  schedule: Schedule,
  *,
  momentum: Rate = 0.0,
  mu_dtype: Moments = "float32",
  weight_decay: NonNegativeFloat = 0.0,
) -> optax.GradientTransformation:
  """Gradient descent; `weight_decay` adds its share of each matrix to the gradient, before the
  momentum."""
  decay = Decay(weight_decay).transformation() if weight_decay else optax.identity()
  trace = optax.trace(momentum, accumulator_dtype=mu_dtype) if momentum else optax.identity()
  return optax.chain(decay, trace, at_rate(schedule))
