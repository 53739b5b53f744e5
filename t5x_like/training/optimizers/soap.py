"""SOAP: Adam in the eigenbasis of Shampoo's statistics."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from t5x_like.slots import NonNegativeFloat, PositiveInt, Rate
from t5x_like.training.optimizer import Decay, at_rate
from t5x_like.training.schedule import Schedule


class ScaleBySoapState(NamedTuple):
  """Attributes:
  count: int32 scalar, the gradients seen.
  mu, nu: moments by parameter; those of a matrix's second moment are in its basis.
  left, right: averages of `G G^T` and `G^T G`, float32 [D, D], by matrix; empty for a side that is
    not rotated.
  left_basis, right_basis: their eigenvectors, in columns.
  """

  count: jax.Array
  mu: Any
  nu: Any
  left: Any
  right: Any
  left_basis: Any
  right_basis: Any


def make(
  schedule: Schedule,
  *,
  b1: Rate = 0.95,
  b2: Rate = 0.95,
  eps: NonNegativeFloat = 1e-8,
  every: PositiveInt = 10,
  widest: PositiveInt = 10_000,
  weight_decay: NonNegativeFloat = 0.1,
) -> optax.GradientTransformation:
  """SOAP (Vyas et al. 2024, arXiv:2409.11321, algorithm 3) for matrices, Adam for other parameters.

  The basis is renewed after every `every`-th step by a power iteration and a QR decomposition.
  Sides longer than `widest` are not rotated. The first gradient gives the basis alone, as in the
  authors' code. Statistics take D^2 values for each side. Kernels of experts have three axes, so
  they get Adam. Decays matrices only.
  """
  return optax.chain(
    _scale_by_soap(b1, b2, eps, every, widest),
    Decay(weight_decay).transformation(),
    at_rate(schedule),
  )


def _scale_by_soap(
  b1: float, b2: float, eps: float, every: int, widest: int
) -> optax.GradientTransformation:
  def sides(x: jax.Array) -> list[int]:
    return [d if x.ndim == 2 and d <= widest else 0 for d in (x.shape if x.ndim == 2 else (0, 0))]

  def init(params):
    zeros = jax.tree.map(jnp.zeros_like, params)
    square = [
      jax.tree.map(lambda x: jnp.zeros(2 * (sides(x)[i],), jnp.float32), params) for i in range(2)
    ]
    return ScaleBySoapState(jnp.zeros([], jnp.int32), zeros, zeros, *square, *square)

  def update(grads, state, params=None, **_):
    first = state.count == 0
    renew = state.count % every == 0
    steps = jnp.maximum(state.count, 1).astype(jnp.float32)  # updates made, with this one
    bias1 = 1 - b1**steps
    bias2 = 1 - b2**steps

    def one(g, mu, nu, *rest):
      *statistics, ql, qr = rest
      products = (g @ g.T, g.T @ g) if g.ndim == 2 else statistics
      new = [b2 * s + (1 - b2) * x if s.size else s for s, x in zip(statistics, products)]
      mu2 = b1 * mu + (1 - b1) * g
      nu2 = b2 * nu + (1 - b2) * jnp.square(_rotate(g, ql, qr))
      step = (mu2 / bias1) if g.ndim != 2 else _rotate(mu2, ql, qr) / bias1
      step = _rotate_back(step / (jnp.sqrt(nu2 / bias2) + eps), ql, qr)
      mu, nu = (jnp.where(first, a, b) for a, b in ((mu, mu2), (nu, nu2)))
      later = lambda *x: jax.lax.cond(renew, _next_bases, lambda _, *same: same, *x)  # noqa: E731
      bases = jax.lax.cond(first, _first_bases, later, new, [ql, qr], nu)
      return jnp.where(first, 0.0, step), mu, bases[1], *new, *bases[0]

    columns = (state.mu, state.nu, state.left, state.right, state.left_basis, state.right_basis)
    made = {name: one(g, *(column[name] for column in columns)) for name, g in grads.items()}
    updates, *rest = ({name: values[i] for name, values in made.items()} for i in range(7))
    return updates, ScaleBySoapState(optax.safe_increment(state.count), *rest)

  return optax.GradientTransformationExtraArgs(init, update)


def _rotate(x: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
  """Return `left^T x right`; an empty basis leaves its side as it is."""
  x = left.T @ x if left.size else x
  return x @ right if right.size else x


def _rotate_back(x: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
  """Invert `_rotated`."""
  x = left @ x if left.size else x
  return x @ right.T if right.size else x


def _first_bases(statistics, bases, nu):
  return [jnp.linalg.eigh(s)[1][:, ::-1] if s.size else s for s in statistics], nu


def _next_bases(statistics, bases, nu):
  """Take a step of orthogonal iteration, its columns by falling eigenvalue; the second moment is
  sorted with them."""
  new = []
  for axis, (s, q) in enumerate(zip(statistics, bases)):
    if s.size:
      order = jnp.argsort(-jnp.einsum("ij,ik,kj->j", q, s, q))
      nu = jnp.take(nu, order, axis=axis)
      q = jnp.linalg.qr(s @ q[:, order])[0]
    new.append(q)
  return new, nu
