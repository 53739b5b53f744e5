"""Shampoo: a matrix's gradients are multiplied on both sides by roots of their second moments."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from t5x_like.slots import NonNegativeFloat, PositiveFloat, PositiveInt, Rate
from t5x_like.training.optimizer import Decay, at_rate
from t5x_like.training.schedule import Schedule

_MIN_SIDE = 1e-30  # a bound of norms and eigenvalues, for gradients that are zero


class ScaleByShampooState(NamedTuple):
  """Attributes:
  count: int32 scalar, the gradients seen.
  mu, nu: Adam's moments by parameter.
  left, right: averages of `G G^T` and `G^T G`, float32 [D, D], by matrix; empty for a side that has
    none.
  left_root, right_root: their inverse roots.
  """

  count: jax.Array
  mu: Any
  nu: Any
  left: Any
  right: Any
  left_root: Any
  right_root: Any


def make(
  schedule: Schedule,
  *,
  b1: Rate = 0.9,
  b2: Rate = 0.999,
  eps: NonNegativeFloat = 1e-8,
  ridge: PositiveFloat = 1e-6,
  every: PositiveInt = 10,
  widest: PositiveInt = 8_192,
  weight_decay: NonNegativeFloat = 0.1,
) -> optax.GradientTransformation:
  """Shampoo (Gupta et al. 2018, arXiv:1802.09568, algorithm 1) for matrices, Adam for other
  parameters.

  As in Shi et al. 2023 (arXiv:2309.06497, sections 2 and 3), statistics are averages of decay `b2`,
  the mean gradient is preconditioned, by `L^-1/4 M R^-1/4`, and the result has the norm of Adam's
  update ("grafting", Anil et al. 2020). Roots are computed anew at every `every`-th step, `ridge`
  times the largest eigenvalue added. A side longer than `widest` is left out, and the other's
  exponent is then -1/2. Statistics take D^2 values for each side. Kernels of experts have three
  axes, so they get Adam. Decays matrices only.
  """
  return optax.chain(
    _scale_by_shampoo(b1, b2, eps, ridge, every, widest),
    Decay(weight_decay).transformation(),
    at_rate(schedule),
  )


def _scale_by_shampoo(b1: float, b2: float, eps: float, ridge: float, every: int, widest: int):
  def init(params):
    zeros = jax.tree.map(jnp.zeros_like, params)
    sides = {
      name: [d if d <= widest else 0 for d in x.shape] if x.ndim == 2 else [0, 0]
      for name, x in params.items()
    }
    square = [
      {name: jnp.zeros((d[side], d[side]), jnp.float32) for name, d in sides.items()}
      for side in (0, 1)
    ]
    return ScaleByShampooState(jnp.zeros([], jnp.int32), zeros, zeros, *square, *square)

  def update(grads, state, params=None, **_):
    steps = (state.count + 1).astype(jnp.float32)
    bias1 = 1 - b1**steps
    bias2 = 1 - b2**steps

    def one(g, mu, nu, left, right, *roots):
      mu = b1 * mu + (1 - b1) * g
      nu = b2 * nu + (1 - b2) * jnp.square(g)
      step = adam = (mu / bias1) / (jnp.sqrt(nu / bias2) + eps)
      if used := [side for side in (left, right) if side.size]:
        left, right = (
          b2 * s + (1 - b2) * x if s.size else s for s, x in ((left, g @ g.T), (right, g.T @ g))
        )

        def inverse(sides, _):
          return [_root(s / bias2, ridge, 0.5 / len(used)) if s.size else s for s in sides]

        roots = jax.lax.cond(
          state.count % every == 0, inverse, lambda _, roots: roots, [left, right], list(roots)
        )
        step = roots[0] @ mu if left.size else mu
        step = step @ roots[1] if right.size else step
        step = step * (jnp.linalg.norm(adam) / jnp.maximum(jnp.linalg.norm(step), _MIN_SIDE))
      return step, mu, nu, left, right, *roots

    made = {name: one(g, *(column[name] for column in state[1:])) for name, g in grads.items()}
    updates, *leaves_left = ({name: values[i] for name, values in made.items()} for i in range(7))
    return updates, ScaleByShampooState(optax.safe_increment(state.count), *leaves_left)

  return optax.GradientTransformationExtraArgs(init, update)


def _root(x: jax.Array, ridge: float, power: float) -> jax.Array:
  """Return `x^-power` of a symmetric matrix, `ridge` times its largest eigenvalue added to all."""
  values, vectors = jnp.linalg.eigh(x)
  largest = jnp.maximum(values[-1], _MIN_SIDE)
  return (vectors * (jnp.maximum(values, 0.0) + ridge * largest) ** -power) @ vectors.T
