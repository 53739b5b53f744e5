"""Which parameters a run trains, and at what rates, by name: `config.tuning = {"name": "layer_decay", "rate": 0.9}`.

One a file, whose `make` takes the options and returns a `Tuning`.
"""

import dataclasses
from collections.abc import Callable

import jax
import optax

Named = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Tuning:
  """What becomes of a model and its optimizer.

  Attributes:
    adapt: `(model, key) -> model`, of a model just made, with what is trained besides its parameters.
    rates: `(optimizer, named parameters) -> optimizer`.
    trained: the names of the parameters that are trained, of all.
  """

  adapt: Callable = lambda model, key: model
  rates: Callable[[optax.GradientTransformation, dict], optax.GradientTransformation] = lambda optimizer, named: (
    optimizer
  )
  trained: Callable[[dict], list[str]] = list


def only(optimizer: optax.GradientTransformation, trained: list[str]) -> optax.GradientTransformation:
  """The optimizer of some parameters; it has no state for the others, and takes and gives updates of these alone."""

  def of(named: Named) -> Named:
    return {name: named[name] for name in trained}

  def update(grads: Named, state, params: Named, **extra):
    return optimizer.update(of(grads), state, of(params), **extra)

  return optax.GradientTransformationExtraArgs(lambda params: optimizer.init(of(params)), update)
