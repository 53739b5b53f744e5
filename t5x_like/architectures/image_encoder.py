"""The image encoder: projected patches as a sequence, through the same stack as texts."""

import dataclasses
import functools
from collections.abc import Callable
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like import slots
from t5x_like.architectures import heads
from t5x_like.architectures.architecture import Batch, Dtype, Layers
from t5x_like.architectures.build import deepnorm_weights, resolve_variant, stack_options
from t5x_like.architectures.design import Design
from t5x_like.architectures.grid_stack import EveryLayerBuilder
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.dims import Dims, subkey
from t5x_like.nn.image_positions import Grid
from t5x_like.nn.length_padding import run_padded
from t5x_like.nn.linear import Linear
from t5x_like.nn.mask import positions
from t5x_like.nn.norm import Identity
from t5x_like.parallel.constrain import constrain
from t5x_like.resolution import Resolution, height_and_width
from t5x_like.slots import NonNegativeInt, PositiveFloat, PositiveInt, Rate

DropPathRates = Literal["linear", "uniform"]

_BACKBONES = "t5x_like.architectures.backbones"  # some of which are image encoders themselves


@slots.rename_keys(edge="partial_patches")
@dataclasses.dataclass(frozen=True)
class ImageVariant:
  """One published size of a family on images.

  Attributes:
    dims: sizes of the stack.
    design: design of the blocks; `position` is a scheme of `nn.image_positions`.
    patch: height and width of a patch in pixels.
    resolution: height and width of the images in pixels; one number for squares.
    channels: channels of the images.
    class_tokens: number of learned vectors before the patches: 1 in ViT, 2 in DeiT, 0 where patches
      are averaged.
    registers: number of learned vectors without a position, which no head reads (Darcet et al.
      2024, arXiv:2309.16588).
    head: one of `architectures.heads`, a name or {"name": …} with its arguments.
    patch_bias, patch_scale: whether the projection of the patches has a bias, and the scale of its
      initial variance.
    backbone: one of `architectures.backbones`, whose map is cut into patches (the hybrid of section
      3.1); None for patches of pixels.
    partial_patches: whether pixels at the right and at the bottom that fill no patch are "refused"
      or "dropped".
  """

  dims: Dims
  design: Design
  patch: PositiveInt = 16
  resolution: Resolution = 224
  channels: PositiveInt = 3
  class_tokens: NonNegativeInt = 1
  registers: NonNegativeInt = 0
  head: str | dict = "image_classification"
  patch_bias: bool = True
  patch_scale: PositiveFloat = 1.0
  backbone: str | dict | None = None
  partial_patches: Literal["refused", "dropped"] = "refused"

  @property
  def grid(self) -> Grid:
    height, width = height_and_width(self.resolution)
    return Grid(height // self.patch, width // self.patch, self.class_tokens)


class ImageModel(nnx.Module):
  """The base of encoders of images: hidden states [B, T, D] from `encode`, and a `head` on them."""

  REQUIRED_FEATURES = ("image",)

  def __call__(self, batch: Batch, key: jax.Array | None = None) -> dict[str, jax.Array]:
    return self.outputs(batch, key)

  def outputs(self, batch: Batch, key: jax.Array | None = None) -> dict[str, jax.Array]:
    """Compute the head's outputs and auxiliary scalars.

    Args:
      batch: `image` float32 [B, Y, X, C].
      key: dropout key, or None for evaluation.
    """
    x_BTD, aux = self.encode(batch["image"], subkey(key, 0))
    return self.head(x_BTD, None, None, subkey(key, 1)) | aux

  def features(self, batch: Batch) -> jax.Array:
    """Return the features that the head classifies, float32 [B, D]."""
    x_BTD, _ = self.encode(batch["image"])
    return self.head.pool(x_BTD).astype(jnp.float32)


class ImageEncoder(ImageModel):
  """A bidirectional stack over patches, and a head.

  Args:
    variant: a name in `VARIANTS`, or an `ImageVariant`. All arguments but `rngs` are keys of
      `config.model`.
    resolution, patch, channels, class_tokens, registers, head: None for the variant's.
    dropout: rate, wherever the design applies dropout.
    drop_path: rate at which training skips a sublayer of the last layer for an image (Huang et al.
      2016).
    drop_path_rates: "linear" from 0 in the first layer to `drop_path` in the last, or "uniform" in
      all (DeiT III).
    dtype, remat, layers, pipeline, design: see `architectures.architecture.Architecture`.
  Raises:
    UserError: names the key, its value and the expected one.
  """

  VARIANTS: ClassVar[dict[str, ImageVariant]] = {}
  VARIANT = ImageVariant

  def __init__(
    self,
    rngs: nnx.Rngs,
    *,
    variant: str | ImageVariant,
    resolution: Resolution | None = None,
    patch: PositiveInt | None = None,
    channels: PositiveInt | None = None,
    class_tokens: NonNegativeInt | None = None,
    registers: NonNegativeInt | None = None,
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
    fields = dict(
      resolution=resolution, patch=patch, channels=channels, class_tokens=class_tokens, head=head
    )
    if registers is not None:
      if not hasattr(self.VARIANT, "registers"):
        raise UserError(
          f"config.model.registers: found {registers}, but this family in stages "
          "has none; leave it out"
        )
      fields["registers"] = registers
    self.variant = resolve_variant(self.VARIANTS, variant, design, **fields)
    self.dtype = jnp.dtype(dtype)
    options = stack_options(dropout, remat, layers, pipeline, drop_path)
    self.drop_path_rates = drop_path_rates
    self.build(rngs, **options)
    self.REQUIRED_FEATURES = ("image", *getattr(self.head, "batch_features", ()))

  def build(self, rngs: nnx.Rngs, **options) -> None:
    """Build the projection of patches, the learned vectors, the stack and the head."""
    variant = self.variant
    dims = self.variant.dims
    _check_patch(variant)
    self.backbone = self._build_backbone(rngs) if variant.backbone else None
    self.patches = self._build_patch_projection(rngs)
    self.tokens = self._make_vectors(rngs, variant.class_tokens)
    self.registers = self._make_vectors(rngs, variant.registers)
    parts = EveryLayerBuilder(
      variant.design,
      dims,
      causal=False,
      deepnorm=deepnorm_weights(dims.layers, 0)["encoder"],
      grid=variant.grid,
      depths=drop_path_shares(self.drop_path_rates, (dims.layers,), 0),
      **options,
    )
    self.inputs = parts.inputs(rngs)
    self.position = parts.shared_position(rngs)
    if variant.registers and self.inputs.position.owner != "inputs":
      raise UserError(
        f"config.model.registers: found {variant.registers} with positions "
        f"{variant.design.position!r}, expected positions at the inputs, which registers lack"
      )
    self.encoder = parts.stack(rngs)
    self.head = slots.make(
      "config.model.head", variant.head, heads, "make", rngs=rngs, variant=variant, **options
    )
    if not getattr(self.head, "norm_before", True):
      self.encoder = self.encoder.without(final_norm=Identity())
    if self.backbone and getattr(self.head, "batch_features", ()):
      raise UserError(
        f"config.model.head: found {variant.head!r}, but through a backbone patches "
        "see their neighbours"
      )

  def _make_vectors(self, rngs: nnx.Rngs, count: int) -> nnx.Param | None:
    """Make learned vectors [count, D], concatenated with the patches; None for a count of 0."""
    if not count:
      return None
    shape = (count, self.variant.dims.embed)
    return params.param(rngs, self.variant.design.table_init(), shape, (None, "embed"))

  def _build_backbone(self, rngs: nnx.Rngs) -> nnx.Module:
    """Build the network whose map is cut into patches."""
    return slots.make(
      "config.model.backbone",
      self.variant.backbone,
      _BACKBONES,
      "make",
      rngs=rngs,
      channels=self.variant.channels,
    )

  def _build_patch_projection(self, rngs: nnx.Rngs) -> Linear:
    """Build the projection of patches of pixels, or of the backbone's map."""
    variant = self.variant
    stride = 1
    channels = variant.channels
    if self.backbone:
      stride = self.backbone.stride
      channels = self.backbone.width
    if variant.patch % stride:
      raise UserError(
        f"config.model.patch: found {variant.patch}, expected a multiple of the backbone's "
        f"stride, {stride}"
      )
    inputs = (variant.patch // stride) ** 2 * channels
    shape = (inputs, variant.dims.embed)
    init = variant.design.kernel_init(inputs, scale=variant.patch_scale)
    return Linear(shape, (None, "embed"), init, rngs, bias=variant.patch_bias)

  def outputs(self, batch: Batch, key: jax.Array | None = None) -> dict[str, jax.Array]:
    """Compute the head's outputs and auxiliary scalars.

    Args:
      batch: `image` float32 [B, Y, X, C]; `visible_patches` and `masked_patches`, int32 [B, K] and
        [B, M], for a head that reconstructs the patches that were not encoded; `patch_sources`
        int32 [B, T] for a head that corrupts patches.
    """
    features = {name: batch[name] for name in getattr(self.head, "batch_features", ())}
    corrupt = getattr(self.head, "corrupt", None)
    if corrupt is not None:
      corrupt = functools.partial(corrupt, sources_BT=features["patch_sources"])
    visible_BK = features.get("visible_patches")
    x_BTD, aux = self.encode(batch["image"], subkey(key, 0), visible_BK, corrupt)
    return self.head(x_BTD, None, None, subkey(key, 1), **features) | aux

  def encode(
    self,
    image_BYXC: jax.Array,
    key: jax.Array | None = None,
    visible_BK: jax.Array | None = None,
    corrupt: Callable[[jax.Array], jax.Array] | None = None,
  ):
    """Return (hidden states [B, E + K, D] of the class tokens and the patches, auxiliary scalars).

    Args:
      visible_BK: int32, the indices of the patches to encode; None for all, in raster order.
      corrupt: function of the projected patches [B, T, D], applied before positions are added.
    """
    patches_BTX = self._cut_patches(image_BYXC).astype(self.dtype)
    x_BTD = self.patches(patches_BTX)
    if corrupt is not None:
      x_BTD = corrupt(x_BTD)
    B = len(x_BTD)
    E = self.variant.class_tokens
    pos = positions(self.variant.grid.length)
    if visible_BK is not None:
      x_BTD = jnp.take_along_axis(x_BTD, visible_BK[..., None], axis=1)
      token_pos_BE = jnp.broadcast_to(pos[:, :E], (B, E))
      pos = jnp.concatenate([token_pos_BE, visible_BK + E], axis=1)
    if self.tokens is not None:
      tokens_ED = self.tokens[...].astype(self.dtype)
      tokens_BED = jnp.broadcast_to(tokens_ED, (B, *tokens_ED.shape))
      x_BTD = jnp.concatenate([tokens_BED, x_BTD], axis=1)
    x_BTD = self.inputs(x_BTD, pos, None, subkey(key, 0))
    T = x_BTD.shape[1]
    if self.registers is not None:
      registers_RD = self.registers[...].astype(self.dtype)
      registers_BRD = jnp.broadcast_to(registers_RD, (B, *registers_RD.shape))
      x_BTD = jnp.concatenate([x_BTD, registers_BRD], axis=1)
      pos = positions(x_BTD.shape[1])
    x_BTD, aux = run_padded(
      self.encoder, x_BTD, pos, subkey(key, 1), aligned=visible_BK is None, position=self.position
    )
    return x_BTD[:, :T], aux

  def _cut_patches(self, image_BYXC: jax.Array) -> jax.Array:
    """Return patches [B, T, inputs of the projection], of pixels or of the backbone's map."""
    if self.backbone is None:
      return patchify(image_BYXC, self.variant)
    check_images(image_BYXC, self.variant)
    image_BYXC = constrain(image_BYXC.astype(self.dtype), "batch", None, None, None)
    map_BYXC = self.backbone(image_BYXC)
    patch = self.variant.patch // self.backbone.stride
    return cut_patches(map_BYXC, patch, self.variant.grid)


def _check_patch(variant: ImageVariant) -> None:
  """Raise UserError if patches do not fill the images and partial patches are refused."""
  height, width = height_and_width(variant.resolution)
  patch = variant.patch
  if height % patch == 0 and width % patch == 0:
    return
  if variant.partial_patches == "refused" or min(height, width) < patch:
    raise UserError(
      f"config.model.resolution: found {variant.resolution} with patches of {patch}, "
      "expected a multiple of the patch"
    )


def drop_path_shares(
  rates: DropPathRates, layers: tuple[int, ...], stage: int
) -> tuple[float, ...]:
  """Return the drop-path rates of a stage's layers as shares of the model's rate.

  A share is the depth from 0 to 1, or 1 if rates are uniform.

  Args:
    layers: numbers of layers of all stages.
  """
  if rates == "uniform":
    return (1.0,) * layers[stage]
  first = sum(layers[:stage])
  last = max(sum(layers) - 1, 1)
  return tuple((first + n) / last for n in range(layers[stage]))


def patchify(image_BYXC: jax.Array, variant: ImageVariant) -> jax.Array:
  """Cut images into patches in raster order: [B, patches, P * P * C].

  Pixels are ordered by row, column and channel. Zeros fill the last patches where an image ends
  before them; pixels after them are dropped. Raises as `check_images`.
  """
  check_images(image_BYXC, variant)
  return cut_patches(image_BYXC, variant.patch, variant.grid)


def cut_patches(x_BYXC: jax.Array, P: int, grid: Grid) -> jax.Array:
  """Cut an image or a map into patches of P x P cells, as `patchify`."""
  B, Y, X, C = x_BYXC.shape
  below = max(grid.rows * P - Y, 0)
  right = max(grid.columns * P - X, 0)
  x_BYXC = jnp.pad(x_BYXC, ((0, 0), (0, below), (0, right), (0, 0)))
  x_BYXC = x_BYXC[:, : grid.rows * P, : grid.columns * P]
  by_row = x_BYXC.reshape(B, grid.rows, P, grid.columns, P, C)
  by_patch = jnp.transpose(by_row, (0, 1, 3, 2, 4, 5))
  return by_patch.reshape(B, grid.patches, -1)


def check_images(image_BYXC: jax.Array, variant: ImageVariant) -> None:
  """Raise a `UserError` unless the images have the variant's resolution and channels."""
  expected = (*height_and_width(variant.resolution), variant.channels)
  if image_BYXC.shape[1:] != expected:
    key = "channels" if image_BYXC.shape[1:3] == expected[:2] else "resolution"
    raise UserError(
      f"config.model.{key}: the model is for images of {list(expected)}, found "
      f"{list(image_BYXC.shape[1:])} (height, width, channels); set config.model.{key} and "
      f"config.task.{key} alike"
    )
