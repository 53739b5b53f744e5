"""StableAdamW (Wortsman et al. 2023, arXiv:2304.13013, algorithm 2): AdamW with clipped rates."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from t5x_like.slots import NonNegativeFloat, Rate
from t5x_like.training.optimizer import Decay, at_rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(Decay):
  """The arguments of StableAdamW.

  The rate of each tensor is divided by the root mean square of `g / max(sqrt(v), eps)` if that
  exceeds 1. So is the decay, which is multiplied by the rate.

  Attributes:
    b1, b2: decays of the averages of gradients and of their squares.
    eps: added to the root of the average of squares.
  """

  b1: Rate = 0.9
  b2: Rate = 0.99
  eps: NonNegativeFloat = 1e-6

  def build(self, schedule):
    adam = optax.scale_by_adam(self.b1, self.b2, self.eps)
    decay = self.decay_weights()

    def update(grads, state, params, **_):
      directions, state = adam.update(grads, state)
      decayed, _ = decay.update(directions, decay.init(params), params)
      second_moments = optax.tree.bias_correction(state.nu, self.b2, state.count)

      def divide(u: jax.Array, g: jax.Array, v: jax.Array) -> jax.Array:
        ratio = jnp.mean(jnp.square(g) / jnp.maximum(v, self.eps**2))
        return u / jnp.maximum(1.0, jnp.sqrt(ratio))

      return jax.tree.map(divide, decayed, grads, second_moments), state

    scaled = optax.GradientTransformationExtraArgs(adam.init, update)
    return optax.chain(scaled, at_rate(schedule))
