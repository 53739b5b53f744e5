"""AdEMAMix: Adam with a second, slow average of gradients."""

import math

import optax

from t5x_like.slots import NonNegativeFloat, NonNegativeInt, Rate
from t5x_like.training.optimizer import Decay, Moments, at_rate
from t5x_like.training.schedule import Schedule


def make(
  schedule: Schedule,
  *,
  b1: Rate = 0.9,
  b2: Rate = 0.999,
  b3: Rate = 0.9999,
  alpha: NonNegativeFloat = 5.0,
  warmup_steps: NonNegativeInt = 0,
  eps: NonNegativeFloat = 1e-8,
  mu_dtype: Moments = "float32",
  weight_decay: NonNegativeFloat = 0.1,
) -> optax.GradientTransformation:
  """AdEMAMix (Pagliardini et al. 2024, arXiv:2409.03137, algorithm 1): the slow average, of decay
  `b3`, is added `alpha` times to the fast one before the division.

  Over the first `warmup_steps`, usually the whole run, alpha grows from 0 and the half-life of b3
  from that of b1, both linearly from update 1 on. `mu_dtype` is of the fast average: in bfloat16
  the slow one would stand still. Decays matrices only.
  """
  if warmup_steps:
    rising = optax.linear_schedule(0.0, alpha, warmup_steps)
    halves = optax.linear_schedule(_half_life(b1), _half_life(b3), warmup_steps)

    def alpha(count):
      return rising(count + 1)

    def b3(count):
      return 0.5 ** (1.0 / (halves(count + 1) + 1.0))

  scaled = optax.contrib.scale_by_ademamix(b1, b2, b3, alpha, eps)

  moments = lambda state: state._replace(m1=optax.tree.cast(state.m1, mu_dtype))  # noqa: E731

  def update(grads, state, params=None):
    directions, state = scaled.update(grads, state, params)
    return directions, moments(state)

  averages = optax.GradientTransformation(lambda params: moments(scaled.init(params)), update)
  return optax.chain(averages, Decay(weight_decay).transformation(), at_rate(schedule))


def _half_life(decay: float) -> float:
  """Return the steps after which half of a gradient's weight is gone, minus one (appendix A.1)."""
  return math.log(0.5) / math.log(decay) - 1.0 if decay else -1.0
