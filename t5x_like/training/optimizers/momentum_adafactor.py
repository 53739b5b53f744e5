"""Adafactor with momentum, without relative steps: AdamW with factored second moments."""

from typing import Unpack

import jax.numpy as jnp
import optax

from t5x_like.slots import PositiveFloat, Rate
from t5x_like.training.optimizer import Decay, Moments, at_rate
from t5x_like.training.schedule import Schedule

_MIN_FACTORED = 32  # a matrix with a smaller second-largest side keeps a full second moment


def make(
  schedule: Schedule,
  *,
  decay_rate: PositiveFloat = 0.8,
  b2: Rate = 0.999,
  momentum: Rate = 0.9,
  mu_dtype: Moments = "bfloat16",
  **decay: Unpack[Decay],
) -> optax.GradientTransformation:
  """Adafactor as it trains large ViTs (Zhai et al. 2022, arXiv:2106.04560, and big_vision's
  `scale_by_adafactor`).

  Args:
    decay_rate, b2: the second moment of update t (from 1) decays by `1 - t**-decay_rate`, but at
      most by `b2`.
    momentum, mu_dtype: decay of the average of updates, and its dtype.
  """

  def capped(count, exponent):
    return jnp.minimum(b2, 1.0 - (jnp.asarray(count, jnp.float32) + 1.0) ** -exponent)

  moments = optax.scale_by_factored_rms(True, decay_rate, 0, _MIN_FACTORED, decay_rate_fn=capped)
  average = optax.chain(
    optax.scale(1.0 - momentum), optax.trace(momentum, accumulator_dtype=mu_dtype)
  )
  return optax.chain(moments, average, Decay(**decay).transformation(), at_rate(schedule))
