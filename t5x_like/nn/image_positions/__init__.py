"""Position schemes of images: where a patch lies in its grid. One file each, named after the scheme.

As in `nn.positions`, of whose `Position` they are subclasses; `make` is given the `grid` too, and the `key_grid` where
keys have another. The positions of a
sequence are 0 to E-1 for the extra tokens before the patches (the class token), and E + row * columns + column for
patches: whichever patches a call gets, as in masked autoencoders, their positions say where they belong.
"""

import dataclasses


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
    """The grid of every `stride`-th row and column."""
    return Grid(-(-self.rows // stride), -(-self.columns // stride), self.extra)
