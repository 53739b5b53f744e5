"""Lion: one moment, and steps by its sign."""

import optax

from t5x_like.slots import NonNegativeFloat, Rate
from t5x_like.training.optimizer import Decay, Moments, at_rate
from t5x_like.training.schedule import Schedule


def make(
  schedule: Schedule,
  *,
  b1: Rate = 0.9,
  b2: Rate = 0.99,
  mu_dtype: Moments = "float32",
  weight_decay: NonNegativeFloat = 0.1,
) -> optax.GradientTransformation:
  """Lion (Chen et al. 2023, program 1), which keeps one moment and steps by its sign: rates are 3
  to 10 times smaller than AdamW's, and `weight_decay`, of matrices only, is as much larger."""
  return optax.chain(
    optax.scale_by_lion(b1, b2, mu_dtype), Decay(weight_decay).transformation(), at_rate(schedule)
  )
