"""Labels and tags as class numbers or, for regression, as values."""

import numpy as np

from t5x_like.errors import UserError, did_you_mean

# the label of an example without one, as in TFDS's test splits, unless a class has this name
UNLABELLED = "-1"


def numbered(names: list | tuple, key: str) -> dict[str, int]:
  """Number the class names; UserError for no name or a repeated one."""
  numbers = {str(name): number for number, name in enumerate(names)}
  if len(numbers) != len(names) or not names:
    found = f"{list(names)}, with a repeated name" if names else "none"
    raise UserError(f"config.task.{key}: found {found}, expected the name of each class once")
  return numbers


def absent(found: str, numbers: dict[str, int] | None) -> bool:
  """Return whether a label says that its example has none: -1, where that is neither a class nor a
  number."""
  return found == UNLABELLED and numbers is not None and UNLABELLED not in numbers


def number_of(found: str, numbers: dict[str, int] | None, field: str, where: str) -> np.ndarray:
  """Return a label's class number (int32), or its value (float32) without `numbers`."""
  if numbers is None:
    try:
      number = float(found)
    except ValueError:
      raise UserError(
        f"{where}: found {found!r} in field {field!r}, expected a number; name the classes with "
        "config.task.labels"
      ) from None
    if not abs(number) <= float(np.finfo(np.float32).max):
      raise UserError(f"{where}: found {found!r} in field {field!r}, expected a finite number")
    return np.float32(number)
  if found not in numbers:
    raise UserError(
      f"{where}: found label {found!r} in field {field!r}, expected one of {', '.join(numbers)}"
      f"{did_you_mean(found, numbers)}"
    )
  return np.int32(numbers[found])
