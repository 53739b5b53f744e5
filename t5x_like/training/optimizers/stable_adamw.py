"""StableAdamW: AdamW whose rate falls for a tensor with gradients larger than they have been."""

from typing import Unpack

import jax
import jax.numpy as jnp
import optax

from t5x_like.slots import NonNegativeFloat, Rate
from t5x_like.training.optimizer import Decay, at_rate
from t5x_like.training.schedule import Schedule


def make(
  schedule: Schedule,
  *,
  b1: Rate = 0.9,
  b2: Rate = 0.99,
  eps: NonNegativeFloat = 1e-6,
  **decay: Unpack[Decay],
) -> optax.GradientTransformation:
  """StableAdamW (Wortsman et al. 2023, arXiv:2304.13013, algorithm 2): AdamW, with the rate of each
  tensor divided by the root mean square of `g / max(sqrt(v), eps)` where that exceeds 1; decay too,
  as it is times the rate."""
  adam = optax.scale_by_adam(b1, b2, eps)
  added = Decay(**decay).transformation()

  def update(grads, state, params, **_):
    directions, state = adam.update(grads, state)
    decayed, _ = added.update(directions, added.init(params), params)
    seconds = optax.tree.bias_correction(state.nu, b2, state.count)

    def divided(u: jax.Array, g: jax.Array, v: jax.Array) -> jax.Array:
      return u / jnp.maximum(1.0, jnp.sqrt(jnp.mean(jnp.square(g) / jnp.maximum(v, eps**2))))

    return jax.tree.map(divided, decayed, grads, seconds), state

  return optax.chain(optax.GradientTransformationExtraArgs(adam.init, update), at_rate(schedule))
