"""Parameters: arrays whose axes have logical names. Every parameter is made here.

Logical axes of parameters: `vocab embed heads kv_heads mlp expert layers`, or None for an axis that
is never split. A recipe's `rules` map them to mesh axes (see `parallel.rules`).
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

Axes = tuple[str | None, ...]


def param(
  rngs: nnx.Rngs, init: Callable, shape: tuple[int, ...], axes: Axes, unit: tuple[int, ...] = ()
) -> nnx.Param:
  """Make a float32 parameter.

  Its `stddev` is the standard deviation of `normal`, None for other initializers.

  Args:
    rngs: source of the random key (stream `params`).
    init: `(key, shape, dtype) -> array`.
    axes: one logical name for each axis.
    unit: for each axis, the length that must stay on one device; ones when omitted. The unit of
      `heads` axes is the head width, so that a mesh that would split a head is refused.

  Raises:
    ValueError: the shape and `axes` differ in length.
  """
  if len(axes) != len(shape):
    raise ValueError(f"shape {shape} needs {len(shape)} logical axes, got {axes}")
  value = init(rngs.params(), shape, jnp.float32)
  stddev = getattr(init, "keywords", {}).get("stddev")
  unit = unit or (1,) * len(shape)
  return nnx.Param(value, axes=axes, unit=unit, stddev=stddev)


def normal(stddev: float) -> Callable:
  """Return an initializer that draws from a normal distribution with mean 0."""
  return partial(_draw_normal, stddev=stddev)


def _draw_normal(key, shape, dtype, stddev: float) -> jax.Array:
  return stddev * jax.random.normal(key, shape, dtype)


def fan_in_normal(fan_in: int, gain: float = 1.0) -> Callable:
  """Return a normal initializer with standard deviation `gain / sqrt(fan_in)`."""
  return normal(gain / math.sqrt(fan_in))


def ones(key, shape, dtype):
  return jnp.ones(shape, dtype)


def zeros(key, shape, dtype):
  return jnp.zeros(shape, dtype)


def constant(value: float) -> Callable:
  return lambda key, shape, dtype: jnp.full(shape, value, dtype)


def is_param(x) -> bool:
  return isinstance(x, nnx.Param)


def named_params(model) -> dict[str, nnx.Param]:
  """Return parameters by name, in the order of the tree.

  A name is, for example, `encoder/blocks/mlp/layer/wi/kernel`.
  """
  leaves, _ = jax.tree_util.tree_flatten_with_path(model, is_leaf=is_param)
  return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def arrays(model) -> dict[str, jax.Array]:
  """Return the model's parameters as plain arrays by name."""
  return {name: p.get_value() for name, p in named_params(model).items()}


def with_arrays(model, values: dict[str, jax.Array]):
  """Return the model, which may be abstract (`jax.eval_shape`), with other parameters by name."""
  _, treedef = jax.tree.flatten(model)
  return jax.tree.unflatten(treedef, [values[name] for name in named_params(model)])


def count(model) -> int:
  """Count the parameters of a model, which may be abstract."""
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(model))
