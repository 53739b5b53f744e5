"""Scale the learning rate of each parameter, as a multiple of the schedule's rate."""

import jax.numpy as jnp
import numpy as np
import optax

from t5x_like.tunings import Named


def scale_updates(optimizer, scales: dict[str, np.ndarray | float]) -> optax.GradientTransformation:
  """Return the optimizer, with each parameter's update multiplied by the parameter's scale.

  Args:
    optimizer: the transformation whose updates are scaled.
    scales: for each parameter, by name, a number or, for stacked layers, an array with a scale for
      each layer.
  """

  def update(grads: Named, state, params: Named, **extra):
    updates, state = optimizer.update(grads, state, params, **extra)
    scaled_updates = {}
    for name, array in updates.items():
      scale = jnp.asarray(scales[name], array.dtype)
      trailing_axes = (1,) * (array.ndim - scale.ndim)
      scaled_updates[name] = array * scale.reshape(scale.shape + trailing_axes)
    return scaled_updates, state

  return optax.GradientTransformationExtraArgs(optimizer.init, update)
