"""AdEMAMix (Pagliardini et al. 2024, arXiv:2409.03137, algorithm 1): Adam with a slow average."""

import dataclasses
import math

import optax

from t5x_like.slots import NonNegativeFloat, NonNegativeInt, Rate
from t5x_like.training.optimizer import MatrixDecay, Moments, at_rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(MatrixDecay):
  """The arguments of AdEMAMix, which adds the slow average to the fast one before the division.

  Over the first `warmup_steps`, usually the whole run, alpha grows linearly from 0, and the
  half-life of b3 from the half-life of b1, both from update 1 on. Only matrices decay.

  Attributes:
    b1, b2: decays of the averages of gradients and of their squares.
    b3: decay of the slow average of gradients.
    alpha: the factor of the slow average.
    warmup_steps: the updates over which alpha and b3 grow; 0 for none.
    eps: added to the root of the average of squares.
    mu_dtype: the dtype of the fast average; in bfloat16 the slow one would not change.
  """

  b1: Rate = 0.9
  b2: Rate = 0.999
  b3: Rate = 0.9999
  alpha: NonNegativeFloat = 5.0
  warmup_steps: NonNegativeInt = 0
  eps: NonNegativeFloat = 1e-8
  mu_dtype: Moments = "float32"

  def build(self, schedule):
    alpha = self.alpha
    b3 = self.b3
    if self.warmup_steps:
      rising = optax.linear_schedule(0.0, self.alpha, self.warmup_steps)
      halves = optax.linear_schedule(_half_life(self.b1), _half_life(self.b3), self.warmup_steps)

      def alpha(count):
        return rising(count + 1)

      def b3(count):
        return 0.5 ** (1.0 / (halves(count + 1) + 1.0))

    scaled = optax.contrib.scale_by_ademamix(self.b1, self.b2, b3, alpha, self.eps)

    def cast(state):
      return state._replace(m1=optax.tree.cast(state.m1, self.mu_dtype))

    def update(grads, state, params=None):
      directions, state = scaled.update(grads, state, params)
      return directions, cast(state)

    averages = optax.GradientTransformation(lambda params: cast(scaled.init(params)), update)
    return optax.chain(averages, self.decay_weights(), at_rate(schedule))


def _half_life(decay: float) -> float:
  """Return the steps after which half of a gradient's weight is gone, minus one (appendix A.1)."""
  return math.log(0.5) / math.log(decay) - 1.0 if decay else -1.0
