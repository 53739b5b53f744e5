"""Statistics of the two sides of matrices, which Shampoo and SOAP keep."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

Named = dict[str, jax.Array]


def zero_statistics(params: Named, widest: int) -> list[Named]:
  """Return zeros for the averages of `G G^T` and of `G^T G`, by parameter.

  Args:
    widest: a side longer than this has no statistics.
  Returns:
    For each side, float32 [D, D] by the name of a parameter; [0, 0] for a side without statistics
    and for parameters that are no matrices.
  """
  statistics = []
  for axis in range(2):
    side = {}
    for name, x in params.items():
      has_statistics = x.ndim == 2 and x.shape[axis] <= widest
      size = x.shape[axis] if has_statistics else 0
      side[name] = jnp.zeros((size, size), jnp.float32)
    statistics.append(side)
  return statistics


def update_each(
  update_param: Callable, grads: Named, columns: Sequence[Named]
) -> tuple[Named, list[Named]]:
  """Update the parameters one by one.

  Args:
    update_param: (gradient, the parameter's value in each column) -> (update, its new values).
    grads: the gradients by parameter.
    columns: the fields of the optimizer's state that have a value for each parameter.
  Returns:
    The updates, and the new columns.
  """
  updates = {}
  new_columns = [{} for _ in columns]
  for name, gradient in grads.items():
    values = [column[name] for column in columns]
    updates[name], *new_values = update_param(gradient, *values)
    for column, value in zip(new_columns, new_values, strict=True):
      column[name] = value
  return updates, new_columns
