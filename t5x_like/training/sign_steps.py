"""Parameters with a rule of their own: a step of fixed size against the sign of their gradient."""

import jax
import jax.numpy as jnp
import optax

Named = dict[str, jax.Array]


def with_sign_steps(
  optimizer: optax.GradientTransformation, steps: dict[str, float]
) -> optax.GradientTransformationExtraArgs:
  """Take fixed-size sign steps on the parameters in `steps`; update the rest with `optimizer`.

  Those parameters have no state, weight decay or learning rate.
  """

  def others(named: Named) -> Named:
    return {name: x for name, x in named.items() if name not in steps}

  def update(grads: Named, state, params: Named, **extra):
    updates, state = optimizer.update(others(grads), state, others(params), **extra)
    signed = {name: -step * jnp.sign(grads[name]) for name, step in steps.items() if name in grads}
    return updates | signed, state

  return optax.GradientTransformationExtraArgs(
    lambda params: optimizer.init(others(params)), update
  )
