"""AdamW (Loshchilov & Hutter 2019)."""

import dataclasses

import optax

from t5x_like.slots import NonNegativeFloat, Rate
from t5x_like.training.optimizer import Decay, Moments, at_rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(Decay):
  """The arguments of AdamW.

  By default, only matrices decay: norm scales, biases and other vectors do not.

  Attributes:
    b1, b2: decays of the averages of gradients and of their squares.
    eps: added to the root of the average of squares.
    mu_dtype: the dtype of the average of gradients.
  """

  b1: Rate = 0.9
  b2: Rate = 0.999
  eps: NonNegativeFloat = 1e-8
  mu_dtype: Moments = "float32"

  def build(self, schedule):
    adam = optax.scale_by_adam(self.b1, self.b2, self.eps, mu_dtype=self.mu_dtype)
    return optax.chain(adam, self.decay_weights(), at_rate(schedule))
