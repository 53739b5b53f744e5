"""SOAP (Vyas et al. 2024, arXiv:2409.11321, algorithm 3): Adam in Shampoo's eigenbasis."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from t5x_like.slots import NonNegativeFloat, PositiveInt, Rate
from t5x_like.training.optimizer import MatrixDecay, at_rate
from t5x_like.training.optimizers._side_statistics import update_each, zero_statistics


class ScaleBySoapState(NamedTuple):
  """State of SOAP, by parameter.

  Attributes:
    count: int32 scalar, the number of updates.
    mu, nu: moments by parameter; a matrix's second moment is in its eigenbasis.
    left, right: averages of `G G^T` and `G^T G`, float32 [D, D], by matrix; empty for a side that
      is not rotated.
    left_basis, right_basis: their eigenvectors, in columns.
  """

  count: jax.Array
  mu: Any
  nu: Any
  left: Any
  right: Any
  left_basis: Any
  right_basis: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(MatrixDecay):
  """The arguments of SOAP for matrices, and of Adam for other parameters.

  The basis is renewed by a power iteration and a QR decomposition. The first gradient only
  initialises the basis, as in the authors' code. Statistics take D^2 values for each side. Kernels
  of experts have three axes, so they get Adam. Only matrices decay.

  Attributes:
    b1, b2: decays of the averages of gradients and of their squares.
    eps: added to the root of the average of squares.
    every: number of steps from one renewal of the basis to the next.
    widest: a side longer than this is not rotated.
  """

  b1: Rate = 0.95
  b2: Rate = 0.95
  eps: NonNegativeFloat = 1e-8
  every: PositiveInt = 10
  widest: PositiveInt = 10_000

  def build(self, schedule):
    soap = _scale_by_soap(self.b1, self.b2, self.eps, self.every, self.widest)
    return optax.chain(soap, self.decay_weights(), at_rate(schedule))


def _scale_by_soap(
  b1: float, b2: float, eps: float, every: int, widest: int
) -> optax.GradientTransformation:
  def init(params):
    zeros = jax.tree.map(jnp.zeros_like, params)
    square = zero_statistics(params, widest)
    return ScaleBySoapState(jnp.zeros([], jnp.int32), zeros, zeros, *square, *square)

  def update(grads, state, params=None, **_):
    is_first = state.count == 0
    renews_bases = state.count % every == 0
    # The first update changes no parameter, so the second one counts as the first.
    steps = jnp.maximum(state.count, 1).astype(jnp.float32)
    bias1 = 1 - b1**steps
    bias2 = 1 - b2**steps

    def later_bases(statistics, bases, nu):
      def keep(_, bases, nu):
        return bases, nu

      return jax.lax.cond(renews_bases, _next_bases, keep, statistics, bases, nu)

    def update_param(g, mu, nu, left, right, left_basis, right_basis):
      statistics = [left, right]
      if g.ndim == 2:
        statistics = [_average(left, g @ g.T, b2), _average(right, g.T @ g, b2)]
      new_mu = b1 * mu + (1 - b1) * g
      new_nu = b2 * nu + (1 - b2) * jnp.square(_rotate(g, left_basis, right_basis))
      step = _rotate(new_mu, left_basis, right_basis) / bias1
      step = step / (jnp.sqrt(new_nu / bias2) + eps)
      step = _rotate_back(step, left_basis, right_basis)
      # The first update only initialises the statistics.
      step = jnp.where(is_first, 0.0, step)
      mu = jnp.where(is_first, mu, new_mu)
      nu = jnp.where(is_first, nu, new_nu)
      bases, nu = jax.lax.cond(
        is_first, _first_bases, later_bases, statistics, [left_basis, right_basis], nu
      )
      return step, mu, nu, *statistics, *bases

    updates, new_columns = update_each(update_param, grads, state[1:])
    return updates, ScaleBySoapState(optax.safe_increment(state.count), *new_columns)

  return optax.GradientTransformationExtraArgs(init, update)


def _average(statistics: jax.Array, product: jax.Array, b2: float) -> jax.Array:
  return b2 * statistics + (1 - b2) * product if statistics.size else statistics


def _rotate(x: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
  """Return `left^T x right`; an empty basis leaves its side as it is."""
  x = left.T @ x if left.size else x
  return x @ right if right.size else x


def _rotate_back(x: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
  """Invert `_rotate`."""
  x = left @ x if left.size else x
  return x @ right.T if right.size else x


def _first_bases(statistics, bases, nu):
  return [jnp.linalg.eigh(s)[1][:, ::-1] if s.size else s for s in statistics], nu


def _next_bases(statistics, bases, nu):
  """Take a step of orthogonal iteration, and sort the basis and the second moment.

  Columns are sorted by falling eigenvalue, and the second moment with them.
  """
  new = []
  for axis, (s, q) in enumerate(zip(statistics, bases)):
    if s.size:
      order = jnp.argsort(-jnp.einsum("ij,ik,kj->j", q, s, q))
      nu = jnp.take(nu, order, axis=axis)
      q = jnp.linalg.qr(s @ q[:, order])[0]
    new.append(q)
  return new, nu
