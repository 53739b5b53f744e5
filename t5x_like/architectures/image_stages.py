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
      the bottom complete the last patches.
    mlp_ratio: width of a feed-forward layer as a multiple of its stage's width.
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
      raise UserError(
        f"config.model.variant.heads: found {len(self.heads)} for {len(self.depths)} stages, "
        "expected one number for each"
      )
    if self.class_tokens > self.TOKENS:
      remedy = "expected 0 or 1" if self.TOKENS else "models in stages have none; leave it out"
      raise UserError(f"config.model.class_tokens: found {self.class_tokens}, {remedy}")

  @property
  def stages(self) -> tuple[Dims, ...]:
    """Sizes of each stage."""
    stages = []
    for number, (num_heads, layers) in enumerate(zip(self.heads, self.depths, strict=True)):
      embed = self.embed * 2**number
      dims = Dims(
        embed=embed,
        heads=num_heads,
        kv_heads=num_heads,
        head_dim=embed // num_heads,
        mlp=int(embed * self.mlp_ratio),
        layers=layers,
      )
      stages.append(dims)
    return tuple(stages)

  @property
  def dims(self) -> Dims:
    """Sizes of the last stage, which the head reads."""
    return self.stages[-1]

  @property
  def grids(self) -> tuple[Grid, ...]:
    """The grid of each stage."""
    height, width = height_and_width(self.resolution)
    rows = -(-height // self.patch)
    columns = -(-width // self.patch)
    grids = [Grid(rows, columns, self.class_tokens)]
    while len(grids) < len(self.depths):
      grids.append(grids[-1].coarser(2))
    return tuple(grids)

  @property
  def grid(self) -> Grid:
    """The grid of the patches."""
    return self.grids[0]


class Stage(nnx.Module):
  """An optional entry layer, an optional stack of blocks and an optional last layer.

  The entry makes the stage's tokens from the previous stage's, the last layer the next stage's.

  Args:
    end_depths: `Context.depth` of the entry and of the last layer: their drop-path rates as shares
      of the model's.
    length: sequence length for the positions shared by the stack.
  """

  def __init__(
    self,
    entry: Layer | None,
    stack: Stack | None,
    last: Layer | None = None,
    *,
    remat: Remat,
    end_depths: tuple[float, float],
    length: int,
  ):
    self.entry = entry
    self.stack = stack
    self.last = last
    self.remat = remat
    self.end_depths = end_depths
    self.length = length

  def __call__(
    self, x_BTD: jax.Array, key: jax.Array | None
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return (tokens, auxiliary scalars); the entry and the last layer may change number and width.

    With an entry that merges patches, [B, T, D] becomes [B, T / 4, 2 D].
    """
    pos = positions(self.length)
    context = Context(mask=Mask(pos, pos, aligned=True))
    entry_depth, last_depth = self.end_depths
    aux = {}
    if self.entry is not None:
      x_BTD, layer_aux = self._run(self.entry, entry_depth, x_BTD, context, subkey(key, 0))
      add_aux(aux, "entry", layer_aux)
    x_BTD = constrain(x_BTD, "batch", "residual_length", "activation_embed")
    if self.stack is not None:
      x_BTD, stack_aux, _ = self.stack(x_BTD, context, key=subkey(key, 1))
      add_aux(aux, "stack", stack_aux)
    if self.last is not None:
      x_BTD, layer_aux = self._run(self.last, last_depth, x_BTD, context, subkey(key, 2))
      add_aux(aux, "last", layer_aux)
    return x_BTD, aux

  def _run(self, layer: Layer, depth: float, x_BTD: jax.Array, context: Context, key):
    """Run a layer outside of the stack; return (its output, auxiliary scalars)."""

    def call(layer, x_BTD, key):
      layer_context = dataclasses.replace(context, depth=jnp.full((1,), depth))
      y_BTD, aux, _ = layer(x_BTD, layer_context, None, key)
      return y_BTD, aux

    return self.remat.wrap(call, prevent_cse=True)(layer, x_BTD, key)


class StagedEncoder(ImageEncoder):
  """Patches, stages of bidirectional blocks, a norm and a head.

  The head reads the mean of the last stage's tokens. The encoder takes the arguments of every image
  encoder. Families define `build_patches` and `build_stage`.
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

  def layer_depths(self, stage: int) -> tuple[float, ...]:
    """Return the drop-path rates of a stage's layers as shares of the model's."""
    return drop_path_shares(self.drop_path_rates, self.variant.depths, stage)

  def build(self, rngs: nnx.Rngs, **options) -> None:
    """Build the patches, the stages, the final norm and the head."""
    variant = self.variant
    design = self.variant.design
    self.patches = self.build_patches(rngs)
    parts = GridStackBuilder(
      self.input_design(),
      variant.stages[0],
      causal=False,
      grid=variant.grid,
      dropout_rate=options["dropout_rate"],
    )
    self.inputs = parts.inputs(rngs, kind=self.INPUTS)
    for number in range(len(variant.depths)):
      setattr(self, f"stage_{number + 1}", self.build_stage(number, rngs, options))
    width = variant.dims.embed
    self.final_norm = design.make_norm(width, rngs) if design.final_norm else Identity()
    self.head = slots.make(
      "config.model.head", variant.head, heads, "make", rngs=rngs, variant=variant, **options
    )
    if not getattr(self.head, "norm_before", True):
      self.final_norm = Identity()
    if getattr(self.head, "batch_features", ()):
      raise UserError(
        f"config.model.head: found {variant.head!r}, which reconstructs patches; "
        "models in stages merge them"
      )

  def encode(
    self,
    image_BYXC: jax.Array,
    key: jax.Array | None = None,
    visible_BK: None = None,
    corrupt: None = None,
  ):
    """Return (the last stage's tokens [B, T, D], auxiliary scalars)."""
    patches_BTD = self.patches(image_BYXC.astype(self.dtype))
    pos = positions(self.variant.grid.length)
    x_BTD = self.inputs(patches_BTD, pos, None, key)
    aux = {}
    for number in range(len(self.variant.depths)):
      name = f"stage_{number + 1}"
      x_BTD, stage_aux = getattr(self, name)(x_BTD, subkey(key, 1 + number))
      add_aux(aux, name, stage_aux)
    return self.final_norm(x_BTD), aux
