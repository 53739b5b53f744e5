"""Position schemes for images, one file each, named after the scheme.

They subclass `Position` and work as in `nn.positions`. `make` also receives the `grid`, and the
`key_grid` if keys have a different one.

The E extra tokens before the patches, such as the class token, have the positions 0 to E-1. A patch
has the position E + row * columns + column. Since a position identifies its grid cell, a call may
get any subset of the patches, as in masked autoencoders.

A learned absolute scheme adds its vectors to the `inputs` of the stack, in `every_layer` (each
layer has its own table) or in `every_layer_shared` (all layers share one table); see Dosovitskiy et
al. 2021, appendix D.4 and table 8.
"""

import dataclasses
from typing import Literal

AddedAt = Literal["inputs", "every_layer", "every_layer_shared"]


@dataclasses.dataclass(frozen=True)
class Grid:
  """Rows and columns of patches, and the number of extra tokens before them."""

  rows: int
  columns: int
  extra: int = 0

  @property
  def patches(self) -> int:
    """The number of patches."""
    return self.rows * self.columns

  @property
  def length(self) -> int:
    """The number of tokens: the extra ones and the patches."""
    return self.extra + self.patches

  def coarser(self, stride: int) -> "Grid":
    """Return the grid of every `stride`-th row and column."""
    return Grid(-(-self.rows // stride), -(-self.columns // stride), self.extra)
