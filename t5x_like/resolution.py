"""Heights and widths of images, as recipes give them: one number for squares, or two."""

from typing import Annotated, Any

from t5x_like.slots import Condition, PositiveInt


def _both(value: Any) -> bool:
  return len(value) == 2 and all(type(n) is int and 0 < n < 2**31 for n in value)


Resolution = PositiveInt | Annotated[tuple, Condition("two, height and width", _both)]


def height_and_width(resolution: Resolution) -> tuple[int, int]:
  """Return the height and the width."""
  return (resolution, resolution) if isinstance(resolution, int) else tuple(resolution)


def from_sides(height: int, width: int) -> Resolution:
  """Return a resolution as recipes give it."""
  return height if height == width else (height, width)
