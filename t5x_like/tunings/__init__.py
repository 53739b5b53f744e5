"""Select the parameters that a run trains, and scale their rates, by name.

`config.tuning = {"name": "layer_decay", "rate": 0.9}`.

Each is a file with a frozen dataclass `Tuning`, a `BaseTuning` whose fields are its arguments.
"""

import dataclasses
from typing import Any

import jax
import optax
from ml_collections import ConfigDict

from t5x_like.slots import Slot

Named = dict[str, jax.Array]  # by name of parameter


@dataclasses.dataclass(frozen=True)
class BaseTuning:
  """The changes to a model and its optimizer; none unless a subclass makes them."""

  def resolve(self, config: ConfigDict) -> ConfigDict:
    """Complete a resolved config with changes to the model."""
    return config

  def adapt(self, model: Any, key: jax.Array, values: ConfigDict) -> Any:
    """Return a new model with further parameters, such as adapters.

    Args:
      values: the `config.model`.
    """
    return model

  def scale_rates(
    self, optimizer: optax.GradientTransformation, named: dict[str, Any]
  ) -> optax.GradientTransformation:
    """Return the optimizer with other learning rates for some parameters.

    Args:
      named: the parameters, which may be abstract, by name.
    """
    return optimizer

  def trained_names(self, named: dict[str, Any]) -> list[str]:
    """Return the names of the parameters to train."""
    return list(named)


TUNINGS = Slot(__name__, "Tuning", base=BaseTuning, guide="t5x_like/tunings/__init__.py")


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
