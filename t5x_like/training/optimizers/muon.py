"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/): orthogonal momentum."""

import dataclasses

import jax
import optax

from t5x_like.slots import NonNegativeFloat, Rate
from t5x_like.training.optimizer import MatrixDecay, Named, at_rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(MatrixDecay):
  """The arguments of Muon for the matrices of blocks, and of AdamW for other parameters.

  The others are tables, heads, patches and vectors. Nesterov momentum is made orthogonal by five
  Newton-Schulz steps, separately for each expert. Updates are then as large as AdamW's, 0.2 in root
  mean square, so AdamW's rates and decay apply (Liu et al. 2025,
  https://arxiv.org/abs/2502.16982, equation 4).

  Attributes:
    momentum: decay of the sum of gradients of Muon.
    b1, b2: AdamW's decays of the averages of gradients and of their squares.
    eps: added to the root of AdamW's average of squares.
  """

  momentum: Rate = 0.95
  b1: Rate = 0.9
  b2: Rate = 0.999
  eps: NonNegativeFloat = 1e-8

  def build(self, schedule):
    trace = optax.trace(self.momentum, nesterov=True)
    rules = {
      "muon": optax.chain(trace, optax.stateless(_orthogonalize)),
      "adam": optax.scale_by_adam(self.b1, self.b2, self.eps),
    }
    directions = optax.partition(rules, _rule_names)
    return optax.chain(directions, self.decay_weights(), at_rate(schedule))


def _orthogonalize(updates: Named, _) -> Named:
  """Make each matrix of the updates orthogonal, with a root mean square of 0.2."""

  def matrix_axes(tree):
    return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(-2, -1), tree)

  newton_schulz = optax.contrib.scale_by_muon(
    beta=0.0, nesterov=False, weight_dimension_numbers=matrix_axes
  )
  updates, _ = newton_schulz.update(updates, newton_schulz.init(updates))
  return jax.tree.map(lambda u: 0.2 * max(u.shape[-2:]) ** 0.5 * u, updates)


def _rule_names(named: Named) -> dict[str, str]:
  """Return the rule of each parameter."""
  return {name: "muon" if _is_hidden(name, x) else "adam" for name, x in named.items()}


def _is_hidden(name: str, x: jax.Array) -> bool:
  """Return whether a parameter is a matrix within a block, or holds one for each expert."""
  if "blocks/" not in name or "/position/" in name:
    return False
  return x.ndim == 2 or (x.ndim == 3 and name.rpartition("/")[2] in ("gate", "wi", "wo"))
