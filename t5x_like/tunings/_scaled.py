"""Rates as shares of the schedule's."""

import jax.numpy as jnp
import numpy as np
import optax

from t5x_like.tunings import Named


def scale_updates(optimizer, scales: dict[str, np.ndarray | float]) -> optax.GradientTransformation:
  """Multiply each parameter's update by its scale, one for all layers or one for each."""

  def update(grads: Named, state, params: Named, **extra):
    updates, state = optimizer.update(grads, state, params, **extra)
    scaled_updates = {}
    for name, array in updates.items():
      scale = jnp.asarray(scales[name], array.dtype)
      trailing_axes = (1,) * (array.ndim - scale.ndim)
      scaled_updates[name] = array * scale.reshape(scale.shape + trailing_axes)
    return scaled_updates, state

  return optax.GradientTransformationExtraArgs(optimizer.init, update)
