"""Position schemes for images, one file each, named after the scheme.

They subclass `Position` and work as in `nn.positions`; `make` also receives the `grid`, and the
`key_grid` where keys have a different one. The positions of a sequence are 0 to E-1 for the extra
tokens before the patches (the class token), and E + row * columns + column for patches. A call may
therefore get any subset of patches, as in masked autoencoders: their positions tell their cells.

A learned absolute scheme adds its vectors at the `inputs`, in `every_layer` from a table of the
layer's own, or in `every_layer_shared` from one table (Dosovitskiy et al. 2021, appendix D.4 and
table 8).
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
    return self.rows * self.columns

  @property
  def length(self) -> int:
    return self.extra + self.patches

  def coarser(self, stride: int) -> "Grid":
    """Return the grid of every `stride`-th row and column."""
    return Grid(-(-self.rows // stride), -(-self.columns // stride), self.extra)
