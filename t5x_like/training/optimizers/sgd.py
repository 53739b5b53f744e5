"""Stochastic gradient descent, with or without momentum."""

import dataclasses

import optax

from t5x_like.slots import NonNegativeFloat, Rate
from t5x_like.training.optimizer import MatrixDecay, Moments, at_rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(MatrixDecay):
  """The arguments of stochastic gradient descent.

  Attributes:
    momentum: factor by which the running sum of gradients decays in a step; 0 for no momentum.
    mu_dtype: the dtype of the running sum.
    weight_decay: the share of a matrix that is added to its gradient, before the momentum.
  """

  momentum: Rate = 0.0
  mu_dtype: Moments = "float32"
  weight_decay: NonNegativeFloat = 0.0

  def build(self, schedule):
    decay = optax.identity()
    if self.weight_decay:
      decay = self.decay_weights()
    trace = optax.identity()
    if self.momentum:
      trace = optax.trace(self.momentum, accumulator_dtype=self.mu_dtype)
    return optax.chain(decay, trace, at_rate(schedule))
