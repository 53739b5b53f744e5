"""LARS: momentum on gradients as long as their matrices."""

import optax

from t5x_like.slots import NonNegativeFloat, PositiveFloat, Rate
from t5x_like.training.optimizer import Decay, at_rate
from t5x_like.training.schedule import Schedule


def make(
  schedule: Schedule,
  *,
  momentum: Rate = 0.9,
  weight_decay: NonNegativeFloat = 0.0,
  trust_coefficient: PositiveFloat = 1e-3,
) -> optax.GradientTransformation:
  """LARS (You et al. 2017): momentum on gradients as long as their matrix times `trust_coefficient`
  and the rate; vectors have plain momentum."""
  scaled = optax.masked(
    optax.scale_by_trust_ratio(trust_coefficient=trust_coefficient), Decay().mask
  )
  return optax.chain(
    Decay(weight_decay).transformation(), scaled, at_rate(schedule), optax.trace(momentum)
  )
