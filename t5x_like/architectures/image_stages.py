"""Image encoders in stages; each halves the rows and columns of tokens and makes them wider."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like import slots
from t5x_like.architectures import heads
from t5x_like.architectures.design import Design
from t5x_like.architectures.grid_stack import GridStackBuilder
from t5x_like.architectures.image_encoder import ImageEncoder, drop_path_shares
from t5x_like.errors import UserError
from t5x_like.nn.block import add_aux
from t5x_like.nn.dims import Dims, subkey
from t5x_like.nn.embed import Inputs
from t5x_like.nn.image_positions import Grid
from t5x_like.nn.layer import Context, Layer
from t5x_like.nn.mask import Mask, positions
from t5x_like.nn.norm import Identity
from t5x_like.nn.remat import Remat
from t5x_like.nn.stack import Stack
from t5x_like.parallel.constrain import constrain
from t5x_like.resolution import Resolution, height_and_width
from t5x_like.slots import NonNegativeInt, PositiveInt


@dataclasses.dataclass(frozen=True)
class StagedVariant:
  """One published size of a family in stages.

  Attributes:
    embed: width of the first stage; it doubles from stage to stage.
    depths, heads: layers and heads of each stage.
    design: design of the blocks.
    patch: pixels from one patch to the next.
    resolution, channels: height and width, and channels, of the images; zeros on the right and at
      the bottom complete a multiple of the patch.
    mlp_ratio: width of a feed-forward layer in widths of its stage.
    head: one of `architectures.heads`, a name or {"name": …} with its arguments.
    class_tokens: learned vectors before the patches, at most `TOKENS`.
  """

  TOKENS: ClassVar[int] = 0

  embed: PositiveInt
  depths: tuple[PositiveInt, ...]
  heads: tuple[PositiveInt, ...]
  design: Design
  patch: PositiveInt = 4
  resolution: Resolution = 224
  channels: PositiveInt = 3
  mlp_ratio: float = 4.0
  head: str | dict = "image_classification"
  class_tokens: NonNegativeInt = 0

  def __post_init__(self):
    if len(self.heads) != len(self.depths):
      found = f"found {len(self.heads)} for {len(self.depths)} stages"
      raise UserError(f"config.model.variant.heads: {found}, expected one number for each")
    if self.class_tokens > self.TOKENS:
      most = "expected 0 or 1" if self.TOKENS else "models in stages have none; leave it out"
      raise UserError(f"config.model.class_tokens: found {self.class_tokens}, {most}")

  @property
  def stages(self) -> tuple[Dims, ...]:
    """Sizes of each stage."""
    widths = [self.embed << n for n in range(len(self.depths))]
    return tuple(
      Dims(D, N, N, D // N, int(D * self.mlp_ratio), L)
      for D, N, L in zip(widths, self.heads, self.depths, strict=True)
    )

  @property
  def dims(self) -> Dims:
    """Sizes of the last stage, which the head reads."""
    return self.stages[-1]

  @property
  def grids(self) -> tuple[Grid, ...]:
    """The grid of each stage."""
    found = [
      Grid(
        *(-(-side // self.patch) for side in height_and_width(self.resolution)), self.class_tokens
      )
    ]
    while len(found) < len(self.depths):
      found.append(found[-1].coarser(2))
    return tuple(found)

  @property
  def grid(self) -> Grid:
    """The grid of the patches."""
    return self.grids[0]


class Stage(nnx.Module):
  """An optional entry layer, which makes the stage's tokens from the previous stage's, an optional
  stack of blocks, and an optional last layer, whose tokens are the next stage's.

  Args:
    places: drop-path rates of the entry and of the last layer as shares of the model's.
    length: sequence length for the positions shared by the stack.
  """

  def __init__(
    self,
    entry: Layer | None,
    stack: Stack | None,
    last: Layer | None = None,
    *,
    remat: Remat,
    places: tuple[float, float],
    length: int,
  ):
    self.entry = entry
    self.stack = stack
    self.last = last
    self.remat = remat
    self.places = places
    self.length = length

  def __call__(
    self, x_BTD: jax.Array, key: jax.Array | None
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return ([B, T / 4, 2 D], auxiliary scalars), in the first stage [B, T, D]."""
    pos = positions(self.length)
    aux = {}
    context = Context(mask=Mask(pos, pos, aligned=True))

    def run(name: str, number: int, place: float, x_BTD: jax.Array) -> jax.Array:
      def call(layer, x_BTD, key):
        return layer(x_BTD, dataclasses.replace(context, depth=jnp.full((1,), place)), None, key)[
          :2
        ]

      layer = getattr(self, name)
      x_BTD, more = self.remat.wrap(call, prevent_cse=True)(layer, x_BTD, subkey(key, number))
      add_aux(aux, name, more)
      return x_BTD

    x_BTD = x_BTD if self.entry is None else run("entry", 0, self.places[0], x_BTD)
    x_BTD = constrain(x_BTD, "batch", "residual_length", "activation_embed")
    if self.stack is not None:
      x_BTD, more, _ = self.stack(x_BTD, context, key=subkey(key, 1))
      add_aux(aux, "stack", more)
    return (x_BTD if self.last is None else run("last", 2, self.places[1], x_BTD)), aux


class StagedEncoder(ImageEncoder):
  """Patches, stages of bidirectional blocks, a norm and a head, which reads the mean of the last
  stage's tokens.

  It takes the arguments of every image encoder. Families define `build_patches` and `build_stage`.
  """

  VARIANTS: ClassVar[dict[str, StagedVariant]] = {}
  VARIANT = StagedVariant
  INPUTS: ClassVar[type[Inputs]] = Inputs

  def build_patches(self, rngs: nnx.Rngs) -> nnx.Module:
    """Build the module that maps images [B, Y, X, C] to patches [B, T, D]."""
    raise TypeError(f"{type(self).__name__} must define `build_patches`")

  def build_stage(self, number: int, rngs: nnx.Rngs, options: dict) -> Stage:
    """Build a stage, counted from 0; `options` go to `GridStackBuilder`."""
    raise TypeError(f"{type(self).__name__} must define `build_stage`")

  def input_design(self) -> Design:
    return self.variant.design

  def places(self, stage: int) -> tuple[float, ...]:
    """Return the drop-path rates of a stage's layers as shares of the model's."""
    return drop_path_shares(self.drop_path_rates, self.variant.depths, stage)

  def build(self, rngs: nnx.Rngs, **options) -> None:
    variant = self.variant
    design = self.variant.design
    self.patches = self.build_patches(rngs)
    given = dict(causal=False, grid=variant.grid, dropout_rate=options["dropout_rate"])
    self.inputs = GridStackBuilder(self.input_design(), variant.stages[0], **given).inputs(
      rngs, kind=self.INPUTS
    )
    for number in range(len(variant.depths)):
      setattr(self, f"stage_{number + 1}", self.build_stage(number, rngs, options))
    self.final_norm = (
      design.make_norm(variant.dims.embed, rngs) if design.final_norm else Identity()
    )
    self.head = slots.make(
      "config.model.head", variant.head, heads, "make", rngs=rngs, variant=variant, **options
    )
    if not getattr(self.head, "norm_before", True):
      self.final_norm = Identity()
    if getattr(self.head, "batch_features", ()):
      raise UserError(
        f"config.model.head: found {variant.head!r}, which puts patches back; "
        "models in stages lose them"
      )

  def encode(
    self,
    image_BYXC: jax.Array,
    key: jax.Array | None = None,
    kept_BK: None = None,
    change: None = None,
  ):
    """Return (the last stage's tokens [B, T, D], auxiliary scalars)."""
    aux = {}
    x_BTD = self.inputs(
      self.patches(image_BYXC.astype(self.dtype)), positions(self.variant.grid.length), None, key
    )
    for number in range(len(self.variant.depths)):
      x_BTD, more = getattr(self, f"stage_{number + 1}")(x_BTD, subkey(key, 1 + number))
      add_aux(aux, f"stage_{number + 1}", more)
    return self.final_norm(x_BTD), aux
