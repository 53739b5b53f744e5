"""Stacks over the patches of an image."""

import dataclasses
from types import ModuleType
from typing import Any, ClassVar

import jax
from flax import nnx

from t5x_like.architectures.build import POSITION_KEY, StackBuilder
from t5x_like.errors import UserError
from t5x_like.nn import image_positions
from t5x_like.nn.dims import NO_DROPOUT
from t5x_like.nn.image_positions import Grid
from t5x_like.nn.layer import Context, Layer
from t5x_like.nn.positions import Position
from t5x_like.nn.stack import Stack


@dataclasses.dataclass(frozen=True)
class GridStackBuilder(StackBuilder):
  """A builder of stacks with the position schemes of `nn.image_positions`.

  No dropout follows the last norm.

  Attributes:
    grid: the grid of patches.
    key_grid: the grid of keys, if it differs.
  """

  POSITION_PACKAGE: ClassVar[ModuleType] = image_positions
  POSITION_OWNERS: ClassVar[tuple[str, ...]] = ("inputs", "stack", "layer")

  grid: Grid = Grid(0, 0)
  key_grid: Grid | None = None

  def stack(self, rngs: nnx.Rngs) -> Stack:
    return super().stack(rngs).without(dropout=NO_DROPOUT)

  def scheme_arguments(self) -> dict[str, Any]:
    return super().scheme_arguments() | {"grid": self.grid, "key_grid": self.key_grid}

  def _position_owner(self, spec: str | dict) -> str:
    owner = super()._position_owner(spec)
    if owner not in self.POSITION_OWNERS:
      raise UserError(
        f"{POSITION_KEY}: found {spec!r}, but this model adds positions to its inputs "
        "alone; leave out 'at'"
      )
    return owner


class EveryLayerBuilder(GridStackBuilder):
  """A builder of stacks whose blocks may begin by adding positions.

  These are the experiments of Dosovitskiy et al. 2021, appendix D.4.
  """

  POSITION_OWNERS = (*GridStackBuilder.POSITION_OWNERS, "every_layer", "every_layer_shared")

  def shared_position(self, rngs: nnx.Rngs) -> Position | None:
    """Build the scheme whose vectors all layers add (`Context.position_vectors`), if any."""
    return self._position_at("every_layer_shared", self.schemes[0], rngs)

  def _layer(self, layer_index: int, rngs: nnx.Rngs) -> dict[str, Layer]:
    sublayers = super()._layer(layer_index, rngs)
    scheme = self.schemes[0]
    layer_position = self._position_at("every_layer", scheme, rngs)
    if not self._position_owner(scheme).startswith("every_layer"):
      return sublayers
    return {"position": AddPositions(layer_position)} | sublayers


class AddPositions(Layer):
  """The first sublayer of a block, which adds positions.

  They are the vectors of its scheme or, without one, `context.position_vectors`.
  """

  def __init__(self, scheme: Position | None):
    self.scheme = scheme

  def __call__(self, x_BTD: jax.Array, context: Context, cache, key: jax.Array | None):
    if self.scheme is None:
      return x_BTD + context.position_vectors, {}, cache
    return self.scheme.embed(x_BTD, context.mask.q_pos), {}, cache
