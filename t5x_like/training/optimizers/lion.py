"""Lion (Chen et al. 2023, program 1): one average of gradients, and steps by its sign."""

import dataclasses

import optax

from t5x_like.slots import Rate
from t5x_like.training.optimizer import MatrixDecay, Moments, at_rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(MatrixDecay):
  """The arguments of Lion.

  Only matrices decay. Suitable rates are 3 to 10 times smaller than AdamW's, and values of
  `weight_decay` as many times larger.

  Attributes:
    b1: weight of the average in the direction of a step; the new gradient has the weight 1 - b1.
    b2: decay of the average of gradients.
    mu_dtype: the dtype of the average of gradients.
  """

  b1: Rate = 0.9
  b2: Rate = 0.99
  mu_dtype: Moments = "float32"

  def build(self, schedule):
    lion = optax.scale_by_lion(self.b1, self.b2, self.mu_dtype)
    return optax.chain(lion, self.decay_weights(), at_rate(schedule))
