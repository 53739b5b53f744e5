"""Adafactor with momentum, without relative steps: AdamW with factored second moments."""

import dataclasses

import jax.numpy as jnp
import optax

from t5x_like.slots import PositiveFloat, Rate
from t5x_like.training.optimizer import Decay, Moments, at_rate

_MIN_FACTORED = 32  # a matrix with a smaller second-largest side keeps a full second moment


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(Decay):
  """The arguments of Adafactor as it trains large ViTs.

  See Zhai et al. 2022 (arXiv:2106.04560), and big_vision's `scale_by_adafactor`.

  Attributes:
    decay_rate, b2: the second moment of update t (from 1) decays by `1 - t**-decay_rate`, but at
      most by `b2`.
    momentum, mu_dtype: decay of the average of updates, and its dtype.
  """

  decay_rate: PositiveFloat = 0.8
  b2: Rate = 0.999
  momentum: Rate = 0.9
  mu_dtype: Moments = "bfloat16"

  def build(self, schedule):
    def capped_decay(count, exponent):
      steps = jnp.asarray(count, jnp.float32) + 1.0
      return jnp.minimum(self.b2, 1.0 - steps**-exponent)

    moments = optax.scale_by_factored_rms(
      True, self.decay_rate, 0, _MIN_FACTORED, decay_rate_fn=capped_decay
    )
    trace = optax.trace(self.momentum, accumulator_dtype=self.mu_dtype)
    average = optax.chain(optax.scale(1.0 - self.momentum), trace)
    return optax.chain(moments, average, self.decay_weights(), at_rate(schedule))
