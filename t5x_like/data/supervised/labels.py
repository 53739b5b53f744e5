"""Labels and tags as class numbers or, for regression, as values."""

import numpy as np

from t5x_like.errors import UserError, did_you_mean

# The label of an example without one, as in TFDS's test splits, unless a class has this name.
UNLABELLED = "-1"


def number_labels(names: list | tuple, key: str) -> dict[str, int]:
  """Assign consecutive numbers to class names, from 0.

  Args:
    names: the class names.
    key: the key of `config.task` that errors name.

  Raises:
    UserError: there is no name, or one is repeated.
  """
  numbers = {str(name): number for number, name in enumerate(names)}
  if len(numbers) != len(names) or not names:
    description = f"{list(names)}, with a repeated name" if names else "none"
    raise UserError(f"config.task.{key}: found {description}, expected the name of each class once")
  return numbers


def is_unlabelled(label: str, numbers: dict[str, int] | None) -> bool:
  """Return whether a label is -1 and means none: labels are class names, and no class is -1."""
  return label == UNLABELLED and numbers is not None and UNLABELLED not in numbers


def label_number(label: str, numbers: dict[str, int] | None, field: str, where: str) -> np.ndarray:
  """Return a label's class number (int32), or its value (float32) without `numbers`."""
  if numbers is None:
    try:
      number = float(label)
    except ValueError:
      raise UserError(
        f"{where}: found {label!r} in field {field!r}, expected a number; name the classes with "
        "config.task.labels"
      ) from None
    if not abs(number) <= float(np.finfo(np.float32).max):
      raise UserError(f"{where}: found {label!r} in field {field!r}, expected a finite number")
    return np.float32(number)
  if label not in numbers:
    raise UserError(
      f"{where}: found label {label!r} in field {field!r}, expected one of {', '.join(numbers)}"
      f"{did_you_mean(label, numbers)}"
    )
  return np.int32(numbers[label])
