"""Parse heights and widths of images: a recipe gives one number for squares, or two."""

from typing import Annotated, Any

from t5x_like.slots import Condition, PositiveInt


def _is_pair(value: Any) -> bool:
  return len(value) == 2 and all(type(n) is int and 0 < n < 2**31 for n in value)


Resolution = PositiveInt | Annotated[tuple, Condition("two, height and width", _is_pair)]


def height_and_width(resolution: Resolution) -> tuple[int, int]:
  """Return the height and the width."""
  if isinstance(resolution, int):
    return resolution, resolution
  height, width = resolution
  return height, width


def from_sides(height: int, width: int) -> Resolution:
  """Return the resolution as a recipe gives it: one number for squares."""
  return height if height == width else (height, width)
