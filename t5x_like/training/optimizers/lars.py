"""LARS (You et al. 2017): momentum on gradients scaled to the norm of their matrices."""

import dataclasses

import optax

from t5x_like.slots import NonNegativeFloat, PositiveFloat, Rate
from t5x_like.training.optimizer import MatrixDecay, at_rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(MatrixDecay):
  """The arguments of LARS; vectors have plain momentum.

  Attributes:
    momentum: decay of the sum of updates.
    weight_decay: the share of a matrix that is added to its gradient.
    trust_coefficient: norm of a matrix's gradient, as a share of the matrix's norm, before it is
      multiplied by the rate.
  """

  momentum: Rate = 0.9
  weight_decay: NonNegativeFloat = 0.0
  trust_coefficient: PositiveFloat = 1e-3

  def build(self, schedule):
    ratio = optax.scale_by_trust_ratio(trust_coefficient=self.trust_coefficient)
    scaled = optax.masked(ratio, self.decay_mask)
    return optax.chain(self.decay_weights(), scaled, at_rate(schedule), optax.trace(self.momentum))
