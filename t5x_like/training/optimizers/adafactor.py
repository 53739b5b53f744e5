"""Adafactor (Shazeer & Stern 2018, algorithms 4 and 5) as T5 uses it.

The arithmetic and the state equal `optax.adafactor`'s, but each pass over a gradient only reads it.
optax computes the squared gradient once and averages it along rows and along columns. XLA on CPU
then writes this square, and the squares of the clipped update and of the parameter, to memory, and
the update of T5-1.1-small takes more than twice as long (docs/reference/performance.md).
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5x_like.parallel.constrain import platform, ways
from t5x_like.slots import NonNegativeFloat, PositiveFloat
from t5x_like.training.optimizer import OptimizerArguments

_MIN_FACTORED = 128  # a matrix with a smaller second-largest side keeps a full second moment
_EPSILON = 1e-30  # added to squared gradients
# With more columns, XLA on CPU takes 15 times as long as necessary for sums over all rows, which
# are therefore summed `_ROWS` at a time.
_WIDE = 16_384
_ROWS = 8
_MIN_SCALE = 1e-3  # the least root mean square of a parameter, so that zeros can grow


def reread(tree):
  """Return values behind a barrier, so that XLA on CPU recomputes elementwise results at their use.

  XLA's CPU backend writes a cheap elementwise result with two consumers to memory; behind a barrier
  each consumer fuses a separate copy. Other backends fuse siblings and need no barrier.
  """
  return jax.lax.optimization_barrier(tree) if platform() == "cpu" else tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(OptimizerArguments):
  """The arguments of Adafactor: factored second moments, no momentum.

  Attributes:
    decay_rate: the second moment of update t (from 1) decays by `1 - t**-decay_rate`.
    clipping_threshold: root mean square above which an update is scaled down.
    multiply_by_parameter_scale: step sizes are relative to the root mean square of the parameter.
    weight_decay: share of every parameter that a step subtracts, independent of the rate.
  """

  decay_rate: PositiveFloat = 0.8
  clipping_threshold: PositiveFloat = 1.0
  multiply_by_parameter_scale: bool = True
  weight_decay: NonNegativeFloat = 0.0

  def build(self, schedule):
    """Return a transformation to updates that are ready to be added.

    Its state is an `optax.FactoredState`.
    """

    def update_param(g, v_row, v_col, v, p, count, step):
      t = count.astype(jnp.float32) + 1
      u, v_row, v_col, v = _direction(g, v_row, v_col, v, 1 - t**-self.decay_rate)
      size = schedule(step) / jnp.maximum(1.0, _rms(u) / self.clipping_threshold)
      if self.multiply_by_parameter_scale:
        size *= jnp.maximum(_rms(p), _MIN_SCALE)
      return -size * u, v_row, v_col, v

    def update(grads, state, params, *, step, **_):
      leaves, treedef = jax.tree.flatten(grads)
      trees = (state.v_row, state.v_col, state.v, params)
      columns = [treedef.flatten_up_to(tree) for tree in trees]
      rows = [update_param(*leaf, state.count, step) for leaf in zip(leaves, *columns, strict=True)]
      updates, v_row, v_col, v = (treedef.unflatten(column) for column in zip(*rows, strict=True))
      return updates, optax.FactoredState(optax.safe_increment(state.count), v_row, v_col, v)

    init = optax.scale_by_factored_rms(min_dim_size_to_factor=_MIN_FACTORED).init
    scaled = optax.GradientTransformationExtraArgs(init, update)
    if not self.weight_decay:
      return scaled
    return optax.chain(scaled, optax.add_decayed_weights(-self.weight_decay))


def _direction(g, v_row, v_col, v, decay):
  """Return (the gradient divided by the root of its second moment, v_row, v_col, v)."""
  factored = factored_axes(g.shape)
  if factored is None:
    v = decay * v + (1 - decay) * (jnp.square(g) + _EPSILON)
    return g * v**-0.5, v_row, v_col, v
  shorter, longer = factored
  v_row = decay * v_row + (1 - decay) * (_mean_square(g, longer) + _EPSILON)
  g = reread(g)
  v_col = decay * v_col + (1 - decay) * (_mean_square(g, shorter) + _EPSILON)
  row = v_row / jnp.mean(v_row, axis=shorter - (shorter > longer), keepdims=True)
  u = reread(g) * jnp.expand_dims(row**-0.5, longer) * jnp.expand_dims(v_col**-0.5, shorter)
  return u, v_row, v_col, v


def factored_axes(shape: tuple[int, ...]) -> tuple[int, int] | None:
  """Return the second largest and the largest axis; None if the former is too small to factor.

  Of equal axes, the last is the largest.
  """
  if len(shape) < 2:
    return None
  shorter, longer = np.argsort(shape, kind="stable")[-2:]
  return (int(shorter), int(longer)) if shape[shorter] >= _MIN_FACTORED else None


def _mean_square(g: jax.Array, axis: int) -> jax.Array:
  """Return the mean square along an axis of a matrix."""
  if (
    axis == 0
    and g.shape[1] > _WIDE
    and platform() == "cpu"
    and ways("optimizer_embed") * ways("vocab") == 1
  ):
    return _sum_of_squared_rows(g) / g.shape[0]
  return _mean_of_squares(g, (axis,))


def _sum_of_squared_rows(g: jax.Array) -> jax.Array:
  """Add up squares over axis 0, a few rows at a time, so that the sums stay in the CPU's cache."""

  def add(sums, rows):
    return sums + sum(jax.lax.square(row) for row in rows), None

  rows = g.reshape(-1, math.gcd(g.shape[0], _ROWS), g.shape[1])
  return jax.lax.scan(add, jnp.zeros(g.shape[1], g.dtype), rows)[0]


def _rms(x):
  return jax.lax.sqrt(_mean_of_squares(x, tuple(range(x.ndim))))


def _mean_of_squares(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
  """Compute the mean in plain operations.

  `jax.numpy`'s functions would be traced anew for each shape.
  """
  # As a product of floats, the number of elements may exceed int32.
  return jax.lax.reduce_sum(jax.lax.square(x), axes) / math.prod(float(x.shape[a]) for a in axes)
