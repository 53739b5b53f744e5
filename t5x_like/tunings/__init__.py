"""Select the parameters that a run trains, and scale their rates, by name.

`config.tuning = {"name": "layer_decay", "rate": 0.9}`.

One a file, whose `make` takes the options and returns a `Tuning`.
"""

import dataclasses
from collections.abc import Callable

import jax
import optax

Named = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Tuning:
  """The changes to a model and its optimizer.

  Attributes:
    resolve: `config -> config`; completes a resolved config with changes to the model. None changes
      nothing.
    adapt: `(model, key, config.model) -> model`; adds parameters, such as adapters, to a model just
      made.
    scale_rates: `(optimizer, named parameters) -> optimizer`; changes rates by parameter.
    trained_names: `named parameters -> names`; selects the parameters to train.
  """

  resolve: Callable | None = None
  adapt: Callable = lambda model, key, values: model
  scale_rates: Callable[[optax.GradientTransformation, dict], optax.GradientTransformation] = (
    lambda optimizer, _: optimizer
  )
  trained_names: Callable[[dict], list[str]] = list


def freeze_others(
  optimizer: optax.GradientTransformation, trained: list[str]
) -> optax.GradientTransformation:
  """Restrict an optimizer to some parameters; it has neither state nor updates for the others."""

  def select(named: Named) -> Named:
    return {name: named[name] for name in trained}

  def update(grads: Named, state, params: Named, **extra):
    return optimizer.update(select(grads), state, select(params), **extra)

  def init(params: Named):
    return optimizer.init(select(params))

  return optax.GradientTransformationExtraArgs(init, update)
