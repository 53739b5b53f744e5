"""Change the width of a model, in the proportions of a variant.

muP derives its base model in this way, and a ladder of runs its smaller models.
"""

import dataclasses
import math
from typing import Any

from t5x_like import slots
from t5x_like.errors import UserError
from t5x_like.nn.dims import Dims


def scale_dims(where: str, dims: Dims, width: int) -> Dims:
  """Return the sizes of a stack of another width, with heads of the same width.

  The number of heads and the feed-forward width grow with the width.

  Args:
    where: the key or flag that gave the width, for messages.
  Raises:
    UserError: the number of heads or the feed-forward width would be a fraction.
  """
  # The heads and mlp of a width are whole numbers only if it is a multiple of this step.
  step = dims.embed // math.gcd(dims.embed, dims.heads, dims.mlp)
  if width < 1 or width % step:
    raise UserError(
      f"{where}: found the width {width}, expected a multiple of {step}, because a width of "
      f"{dims.embed} has {dims.heads} heads and a feed-forward width of {dims.mlp}"
    )
  heads = dims.heads * width // dims.embed
  mlp = dims.mlp * width // dims.embed
  # Key and value heads stay in proportion if their number divides that of the heads; otherwise
  # there are fewer.
  kv_heads = math.gcd(heads, max(1, dims.kv_heads * width // dims.embed))
  return dataclasses.replace(dims, embed=width, heads=heads, kv_heads=kv_heads, mlp=mlp)


def stack_dims(variant: Any) -> Dims | None:
  """Return the sizes of a variant's stacks; None if they are not all of one width."""
  if not dataclasses.is_dataclass(variant):
    return None
  # A variant in stages has a property `dims` instead of a field.
  field_names = {field.name for field in dataclasses.fields(variant)}
  return variant.dims if "dims" in field_names else None


def resize_variant(
  where: str, variants: dict[str, Any], variant: Any, size: int | str | dict
) -> Any:
  """Return a variant with other widths.

  Args:
    where: as in `scale_dims`.
    variants: the variants of the family, by name.
    size: a width; or a name in `variants`, for its widths; or changes to the fields of `Dims`. A
      family without `Dims` accepts only names, and the result is the variant of that name.
  Raises:
    UserError: there is no such variant, or the size is impossible.
  """
  named_variant = slots.find(where, size, variants) if isinstance(size, str) else None
  if stack_dims(variant) is None:
    if named_variant is None:
      raise UserError(
        f"{where}: found {size!r}, expected the name of a variant, as the sizes of this family are "
        "not in proportion to one width"
      )
    return named_variant
  if named_variant is not None:
    dims = dataclasses.replace(named_variant.dims, layers=variant.dims.layers)
  elif isinstance(size, dict):
    dims = slots.replace_fields(where, variant.dims, size)
  else:
    dims = scale_dims(where, variant.dims, size)
  return dataclasses.replace(variant, dims=dims)
