"""LAMB (You et al. 2020, algorithm 2): AdamW with updates scaled to the norm of their tensors."""

import dataclasses

import optax

from t5x_like.slots import NonNegativeFloat, Rate
from t5x_like.training.optimizer import Decay, at_rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(Decay):
  """The arguments of LAMB.

  Tensors that do not decay keep AdamW's updates, as in the code of ALBERT and in Apex, with which
  DeiT III was trained.

  Attributes:
    b1, b2: decays of the averages of gradients and of their squares.
    eps: added to the root of the average of squares.
  """

  b1: Rate = 0.9
  b2: Rate = 0.999
  eps: NonNegativeFloat = 1e-6

  def build(self, schedule):
    adam = optax.scale_by_adam(self.b1, self.b2, self.eps)
    ratio = optax.masked(optax.scale_by_trust_ratio(), self.decay_mask)
    return optax.chain(adam, self.decay_weights(), ratio, at_rate(schedule))
