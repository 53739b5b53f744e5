"""Shampoo (Gupta et al. 2018, arXiv:1802.09568, algorithm 1): roots of moments on both sides."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from t5x_like.slots import NonNegativeFloat, PositiveFloat, PositiveInt, Rate
from t5x_like.training.optimizer import MatrixDecay, at_rate
from t5x_like.training.optimizers._side_statistics import update_each, zero_statistics

_TINY = 1e-30  # the least norm or eigenvalue to divide by, for gradients that are zero


class ScaleByShampooState(NamedTuple):
  """State of Shampoo, by parameter.

  Attributes:
    count: int32 scalar, the number of updates.
    mu, nu: Adam's moments by parameter.
    left, right: averages of `G G^T` and `G^T G`, float32 [D, D], by matrix; empty for a side that
      has none.
    left_root, right_root: their inverse roots.
  """

  count: jax.Array
  mu: Any
  nu: Any
  left: Any
  right: Any
  left_root: Any
  right_root: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(MatrixDecay):
  """The arguments of Shampoo for matrices, and of Adam for other parameters.

  A matrix's gradients are multiplied on both sides by roots of their second moments. As in Shi et
  al. 2023 (arXiv:2309.06497, sections 2 and 3), statistics are averages of decay `b2`, the mean
  gradient is preconditioned, by `L^-1/4 M R^-1/4`, and the result has the norm of Adam's update
  ("grafting", Anil et al. 2020). If a side is left out, the other's exponent is -1/2. Statistics
  take D^2 values for each side. Kernels of experts have three axes, so they get Adam. Only matrices
  decay.

  Attributes:
    b1, b2: decays of the averages of gradients and of their squares.
    eps: added to the root of Adam's average of squares.
    ridge: share of the largest eigenvalue that is added to all eigenvalues before the root.
    every: number of steps from one computation of the roots to the next.
    widest: a side longer than this is left out.
  """

  b1: Rate = 0.9
  b2: Rate = 0.999
  eps: NonNegativeFloat = 1e-8
  ridge: PositiveFloat = 1e-6
  every: PositiveInt = 10
  widest: PositiveInt = 8_192

  def build(self, schedule):
    shampoo = _scale_by_shampoo(self.b1, self.b2, self.eps, self.ridge, self.every, self.widest)
    return optax.chain(shampoo, self.decay_weights(), at_rate(schedule))


def _scale_by_shampoo(b1: float, b2: float, eps: float, ridge: float, every: int, widest: int):
  def init(params):
    zeros = jax.tree.map(jnp.zeros_like, params)
    square = zero_statistics(params, widest)
    return ScaleByShampooState(jnp.zeros([], jnp.int32), zeros, zeros, *square, *square)

  def update(grads, state, params=None, **_):
    steps = (state.count + 1).astype(jnp.float32)
    bias1 = 1 - b1**steps
    bias2 = 1 - b2**steps

    def renew_roots(statistics: list[jax.Array], roots: list[jax.Array]) -> list[jax.Array]:
      num_sides = sum(s.size > 0 for s in statistics)
      inverse = lambda s: _root(s / bias2, ridge, 0.5 / num_sides) if s.size else s  # noqa: E731
      return jax.lax.cond(
        state.count % every == 0,
        lambda statistics, _: [inverse(s) for s in statistics],
        lambda _, roots: roots,
        statistics,
        roots,
      )

    def update_param(g, mu, nu, left, right, left_root, right_root):
      mu = b1 * mu + (1 - b1) * g
      nu = b2 * nu + (1 - b2) * jnp.square(g)
      adam = (mu / bias1) / (jnp.sqrt(nu / bias2) + eps)
      if not left.size and not right.size:
        return adam, mu, nu, left, right, left_root, right_root
      if left.size:
        left = b2 * left + (1 - b2) * (g @ g.T)
      if right.size:
        right = b2 * right + (1 - b2) * (g.T @ g)
      left_root, right_root = renew_roots([left, right], [left_root, right_root])
      step = left_root @ mu if left.size else mu
      step = step @ right_root if right.size else step
      step = step * (jnp.linalg.norm(adam) / jnp.maximum(jnp.linalg.norm(step), _TINY))
      return step, mu, nu, left, right, left_root, right_root

    updates, new_columns = update_each(update_param, grads, state[1:])
    return updates, ScaleByShampooState(optax.safe_increment(state.count), *new_columns)

  return optax.GradientTransformationExtraArgs(init, update)


def _root(x: jax.Array, ridge: float, power: float) -> jax.Array:
  """Return `(x + ridge * largest eigenvalue * I)^-power` of a symmetric matrix."""
  values, vectors = jnp.linalg.eigh(x)
  largest = jnp.maximum(values[-1], _TINY)
  return (vectors * (jnp.maximum(values, 0.0) + ridge * largest) ** -power) @ vectors.T
