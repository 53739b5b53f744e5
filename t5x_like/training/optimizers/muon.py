"""Muon: orthogonal momentum for the matrices of blocks."""

import functools

import jax
import optax

from t5x_like.slots import NonNegativeFloat, Rate
from t5x_like.training.optimizer import Decay, at_rate
from t5x_like.training.schedule import Schedule


def make(
  schedule: Schedule,
  *,
  momentum: Rate = 0.95,
  b1: Rate = 0.9,
  b2: Rate = 0.999,
  eps: NonNegativeFloat = 1e-8,
  weight_decay: NonNegativeFloat = 0.1,
) -> optax.GradientTransformation:
  """Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) for the matrices of
  blocks, AdamW for the
  others: tables, heads, patches and vectors.

  Nesterov momentum is made orthogonal by five Newton-Schulz steps, every expert's by itself.
  Updates are then as large as AdamW's, 0.2 in root mean square, so AdamW's rates and decay apply
  (Liu et al. 2025, https://arxiv.org/abs/2502.16982, equation 4).
  """
  axes = functools.partial(jax.tree.map, lambda _: optax.contrib.MuonDimensionNumbers(-2, -1))
  newton_schulz = optax.contrib.scale_by_muon(
    beta=0.0, nesterov=False, weight_dimension_numbers=axes
  )

  def orthogonal(updates, _):
    updates, _ = newton_schulz.update(updates, newton_schulz.init(updates))
    return jax.tree.map(lambda u: 0.2 * max(u.shape[-2:]) ** 0.5 * u, updates)

  kinds = {"muon": optax.chain(optax.trace(momentum, nesterov=True), optax.stateless(orthogonal))}
  kinds["adam"] = optax.scale_by_adam(b1, b2, eps)
  chosen = optax.partition(
    kinds, lambda named: {n: "muon" if _hidden(n, x) else "adam" for n, x in named.items()}
  )
  return optax.chain(chosen, Decay(weight_decay).transformation(), at_rate(schedule))


def _hidden(name: str, x: jax.Array) -> bool:
  """Return whether a parameter is a matrix between activations of a block, or such a matrix for
  each expert."""
  if "blocks/" not in name or "/position/" in name:
    return False
  return x.ndim == 2 or (x.ndim == 3 and name.rpartition("/")[2] in ("gate", "wi", "wo"))
