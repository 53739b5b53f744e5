"""A recipe's choices for a model: a published variant with changes, and options of its computation."""

import dataclasses
from typing import Any

from t5x_like import slots
from t5x_like.architectures.design import Variant
from t5x_like.errors import UserError
from t5x_like.nn import remat as policies
from t5x_like.nn.pipeline import EVEN


def chosen(variants: dict[str, Any], variant: Any, design: dict = {}, tokens: dict = {}, **given: Any) -> Any:  # noqa: B006
  """Return the variant, looked up if it is a name, with its changes.

  Args:
    design, tokens: changes to its design and special ids.
    given: other fields; None keeps the variant's.
  Raises:
    UserError: an unknown variant, or a key of a change that is unknown or does not fit.
  """
  variant = slots.find("config.model.variant", variant, variants) if isinstance(variant, str) else variant
  given = {name: value for name, value in given.items() if value is not None}
  for name, changes in {"design": design, "tokens": tokens}.items():
    if changes:
      given[name] = slots.change(f"config.model.{name}", getattr(variant, name), changes)
  return dataclasses.replace(variant, **given)


def variant_of(model_class: type, model: Any) -> Any:
  """Return the variant of `config.model`: a name in the family's table, or a variant given by all its fields."""
  given = slots.plain(model.variant)
  if isinstance(given, str):
    return slots.find("config.model.variant", given, getattr(model_class, "VARIANTS", {}))
  return slots.typed("config.model.variant", given, getattr(model_class, "VARIANT", Variant))


def computed(dropout: float, remat: str | dict, layers: str, pipeline: dict = {}, drop_path: float = 0.0) -> dict:  # noqa: B006
  """Return the options of a `StackBuilder`.

  Raises:
    UserError: a rate outside [0, 1), an unknown policy or key.
  """
  if not 0 <= drop_path < 1:
    raise UserError(f"config.model.drop_path: found {drop_path}, expected at least 0 and less than 1")
  stages = slots.change("config.model.pipeline", EVEN, pipeline)
  return dict(dropout_rate=dropout, drop_path=drop_path, remat=policies.make(remat), layers=layers, pipeline=stages)
