"""Stacks over the patches of an image."""

import dataclasses
from types import ModuleType
from typing import Any, ClassVar

from t5x_like.architectures.build import StackBuilder
from t5x_like.nn import image_positions
from t5x_like.nn.image_positions import Grid


@dataclasses.dataclass(frozen=True)
class GridStackBuilder(StackBuilder):
  """A builder of stacks with the position schemes of `nn.image_positions`.

  Attributes:
    grid: the grid of patches.
    key_grid: the grid of keys, if it differs.
  """

  SCHEMES: ClassVar[ModuleType] = image_positions

  grid: Grid = Grid(0, 0)
  key_grid: Grid | None = None

  def scheme_arguments(self) -> dict[str, Any]:
    return super().scheme_arguments() | {"grid": self.grid, "key_grid": self.key_grid}
