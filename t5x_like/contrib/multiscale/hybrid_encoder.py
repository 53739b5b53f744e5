"""The image encoder that begins with convolutions and ends with attention (CoAtNet)."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like import slots
from t5x_like.architectures import heads
from t5x_like.architectures.architecture import Dtype, Layers
from t5x_like.architectures.build import resolve_variant, stack_options
from t5x_like.architectures.design import Design
from t5x_like.architectures.grid_stack import GridStackBuilder
from t5x_like.architectures.image_encoder import (
  DropPathRates,
  ImageModel,
  check_images,
  drop_path_shares,
)
from t5x_like.contrib.multiscale.mbconv import Convolution, MbConv, apply_per_cell, max_pool_2x2
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.dims import Dims, Dropout, subkey
from t5x_like.nn.feed_forward import gelu
from t5x_like.nn.image_positions import Grid
from t5x_like.nn.layer import Context
from t5x_like.nn.linear import Linear
from t5x_like.nn.mask import Mask, positions
from t5x_like.nn.norm import Identity
from t5x_like.nn.positions import Position
from t5x_like.parallel.constrain import constrain
from t5x_like.resolution import Resolution, height_and_width
from t5x_like.slots import PositiveInt, Rate


@dataclasses.dataclass(frozen=True)
class HybridVariant:
  """One published size of a family of five stages; each halves the side of the grid.

  Attributes:
    stem: channels of the first stage, which has two convolutions.
    widths, depths: widths and layers of the next four stages, two of MBConv blocks and two of
      Transformer blocks.
    design: design of the Transformer blocks; `position` is a scheme of `nn.image_positions`, `norm`
      applies to all blocks.
    head_dim: width of a head.
    middle: (width, number) of MBConv blocks that begin the fourth stage, on its grid; None for
      none.
    expansion: expansion of MBConv blocks and feed-forward layers.
    resolution, channels: height and width, and channels, of the images.
    head: one of `architectures.heads`, a name or {"name": …} with its arguments.
  """

  stem: int
  widths: tuple[int, ...]
  depths: tuple[int, ...]
  design: Design
  head_dim: PositiveInt = 32
  middle: tuple[PositiveInt, ...] | None = None
  expansion: PositiveInt = 4
  resolution: Resolution = 224
  channels: PositiveInt = 3
  head: str | dict = "image_classification"

  class_tokens: ClassVar[int] = 0

  @property
  def dims(self) -> Dims:
    """Sizes of the last stage, which the head reads."""
    return self.stage_dims(3)

  def stage_dims(self, stage: int) -> Dims:
    """Return the sizes of a stage's blocks, not counting its first as a layer."""
    D = self.widths[stage]
    heads = self.widths[stage] // self.head_dim
    return Dims(D, heads, heads, self.head_dim, self.expansion * D, self.depths[stage] - 1)

  def stage_grid(self, stage: int) -> Grid:
    height, width = height_and_width(self.resolution)
    pixels = 2 ** (stage + 2)  # of a cell
    return Grid(-(-height // pixels), -(-width // pixels))  # each halving rounds up


class HybridEncoder(ImageModel):
  """Convolutions, then a bidirectional stack in each of two stages, and a head.

  Args:
    variant: a name in `VARIANTS`, or a `HybridVariant`. All arguments but `rngs` are keys of
      `config.model`.
    resolution, channels, head: None for the variant's.
    dropout, drop_path, drop_path_rates, dtype, remat, layers, pipeline, design: see
      `architectures.image_encoder.ImageEncoder`.
  Raises:
    UserError: names the key, its value and the expected one.
  """

  VARIANTS: ClassVar[dict[str, HybridVariant]] = {}
  VARIANT = HybridVariant

  def __init__(
    self,
    rngs: nnx.Rngs,
    *,
    variant: str | HybridVariant,
    resolution: Resolution | None = None,
    channels: PositiveInt | None = None,
    head: str | dict | None = None,
    dropout: Rate = 0.0,
    drop_path: Rate = 0.0,
    drop_path_rates: DropPathRates = "linear",
    dtype: Dtype = "float32",
    remat: str | dict = "none",
    layers: Layers = "scan",
    pipeline: dict = {},
    design: dict = {},
  ):
    variant = resolve_variant(
      self.VARIANTS, variant, design, resolution=resolution, channels=channels, head=head
    )
    self.variant = variant
    self.dtype = jnp.dtype(dtype)
    options = stack_options(dropout, remat, layers, pipeline, drop_path)
    middle_width, middle_depth = variant.middle or (variant.widths[1], 0)
    widths = (variant.stem, *variant.widths[:2], middle_width)
    depths = (*variant.depths[:2], middle_depth, *variant.depths[2:])
    shares = [drop_path_shares(drop_path_rates, depths, stage) for stage in range(5)]
    norm = functools.partial(variant.design.make_norm, rngs=rngs)
    self.first = Convolution(variant.channels, variant.stem, rngs, stride=2)
    self.first_norm = norm(variant.stem)
    self.second = Convolution(variant.stem, variant.stem, rngs)
    convolutions = []
    for stage in range(3):
      for block, share in enumerate(shares[stage]):
        is_first = block == 0
        convolution = MbConv(
          widths[stage] if is_first else widths[stage + 1],
          widths[stage + 1],
          norm,
          rngs,
          expansion=variant.expansion,
          first=is_first,
          drop_path=drop_path * share,
        )
        convolutions.append(convolution)
    self.convolutions = nnx.List(convolutions)
    self.remat = options["remat"]
    third_pool = Identity() if middle_depth else max_pool_2x2
    self.third = TransformerStage(
      middle_width, variant, 2, rngs, options, shares[3], pool=third_pool
    )
    self.fourth = TransformerStage(variant.widths[2], variant, 3, rngs, options, shares[4])
    self.norm = norm(variant.dims.embed)
    self.head = slots.make(
      "config.model.head", variant.head, heads, "make", rngs=rngs, variant=variant, **options
    )
    if not getattr(self.head, "norm_before", True):
      self.norm = Identity()

  def encode(self, image_BYXC: jax.Array, key: jax.Array | None = None):
    """Return (the cells of the last grid in raster order, [B, T, D]; auxiliary scalars)."""
    check_images(image_BYXC, self.variant)
    x_BYXC = constrain(image_BYXC.astype(self.dtype), "batch", None, None, None)
    x_BYXC = self.second(gelu(self.first_norm(self.first(x_BYXC))))
    run = self.remat.wrap(lambda block, x_BYXC, key: block(x_BYXC, key), prevent_cse=True)
    for number, block in enumerate(self.convolutions):
      x_BYXC = run(block, x_BYXC, subkey(key, number))
    x_BYXC, aux = self.third(x_BYXC, subkey(key, len(self.convolutions)))
    x_BYXC, fourth_aux = self.fourth(x_BYXC, subkey(key, len(self.convolutions) + 1))
    x_BTD = self.norm(x_BYXC.reshape(len(x_BYXC), -1, x_BYXC.shape[-1]))
    return x_BTD, _add_scalars(aux, fourth_aux)


def _add_scalars(first: dict, second: dict) -> dict:
  """Add auxiliary scalars of the same name."""
  return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in first | second}


class TransformerStage(nnx.Module):
  """`project(pool(x)) + attention(pool(norm(x)))` and an MLP, then a stack of ordinary blocks.

  Args:
    shares: drop-path rates of the stage's layers as shares of the model's.
    pool: halves the grid, or the identity where MBConv blocks have done so.
  """

  def __init__(
    self,
    inputs: int,
    variant: HybridVariant,
    stage: int,
    rngs: nnx.Rngs,
    options: dict,
    shares: tuple,
    pool=max_pool_2x2,
  ):
    self.pool = pool
    dims = variant.stage_dims(stage)
    self.grid = variant.stage_grid(stage)
    if dims.embed % variant.head_dim:
      raise UserError(
        f"config.model.variant.widths: found {dims.embed}, expected a multiple of "
        f"{variant.head_dim}"
      )
    builder_options = dict(causal=False, grid=self.grid, **options)
    builder = GridStackBuilder(variant.design, dims, depths=shares[1:], **builder_options)
    if type(builder.inputs(rngs).position) is not Position:
      raise UserError(
        f"config.model.design.position: found {variant.design.position!r}, expected one between "
        "pairs of cells, as 'relative_2d', or 'none'"
      )
    block = builder.block(rngs)
    input_dims = dataclasses.replace(dims, embed=inputs)
    input_builder = GridStackBuilder(variant.design, input_dims, **builder_options)
    entry = input_builder.block(rngs).self_attention
    # The entry reads `inputs` channels and writes `dims.embed`.
    entry.layer.out = block.self_attention.layer.out
    self.project = Linear(
      (inputs, dims.embed), ("embed", None), params.fan_in_normal(inputs), rngs, bias=True
    )
    self.norm = entry.in_norm
    self.attention = entry.layer
    self.mlp = block.mlp
    self.stack = builder.stack(rngs).without(final_norm=Identity()) if dims.layers else None
    self.drop_path = options["drop_path"] * shares[0]
    self.depth = shares[0]

  def __call__(self, x_BYXC: jax.Array, key: jax.Array | None):
    """Return ([B, Y / 2, X / 2, D], auxiliary scalars)."""
    B = len(x_BYXC)
    D = self.project.kernel.shape[-1]
    pos = positions(self.grid.length)
    context = Context(mask=Mask(pos, pos, aligned=True), depth=jnp.full((1,), self.depth))
    pooled_BTD = self.pool(self.norm(x_BYXC)).reshape(B, self.grid.length, -1)
    y_BTD, _, _ = self.attention(pooled_BTD, context, None, subkey(key, 0))
    y_BTD = Dropout(self.drop_path, (-2, -1))(y_BTD, subkey(key, 1))
    x_BTD = apply_per_cell(self.project, self.pool(x_BYXC)).reshape(B, -1, D) + y_BTD
    x_BTD, aux, _ = self.mlp(x_BTD, context, None, subkey(key, 2))
    if self.stack is not None:
      x_BTD, stack_aux, _ = self.stack(x_BTD, context, key=subkey(key, 3))
      aux = _add_scalars(aux, stack_aux)
    return x_BTD.reshape(B, self.grid.rows, self.grid.columns, D), aux
