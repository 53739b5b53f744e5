"""Convolutional encoders of images: a backbone, and a head on the cells of its last map."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like import slots
from t5x_like.architectures import backbones, heads
from t5x_like.architectures.architecture import Dtype, Layers
from t5x_like.architectures.build import resolve_variant
from t5x_like.architectures.design import Design
from t5x_like.architectures.image_encoder import ImageModel, check_images
from t5x_like.errors import UserError
from t5x_like.nn import remat as policies
from t5x_like.nn.dims import Dims
from t5x_like.resolution import Resolution
from t5x_like.slots import PositiveInt, Rate


@dataclasses.dataclass(frozen=True)
class ConvVariant:
  """One published size of a family.

  Attributes:
    backbone: one of `architectures.backbones`, a name or {"name": …} with its arguments.
    width: channels of its last map.
    design: the head's initial kernels, and its norm.
    resolution, channels: height and width, and channels, of the images.
    head: one of `architectures.heads`, a name or {"name": …} with its arguments.
  """

  backbone: str | dict
  width: PositiveInt
  design: Design
  resolution: Resolution = 224
  channels: PositiveInt = 3
  head: str | dict = "image_classification"

  class_tokens: ClassVar[int] = 0

  @property
  def dims(self) -> Dims:
    """Sizes of the last map, which the head reads."""
    return Dims(self.width, 1, 1, self.width, self.width, 1)


class ConvEncoder(ImageModel):
  """A backbone, whose parameters are named as in a detector, and a head.

  Args:
    variant: a name in `VARIANTS`, or a `ConvVariant`. All arguments but `rngs` are keys of
      `config.model`.
    backbone, resolution, channels, head: None for the variant's.
    dropout: rate before the classifier.
    drop_path: rate of a backbone that has one.
    remat: whether the backward pass computes the whole backbone again, whose activations have no
      names.
    layers: without effect; blocks are always unrolled.
    dtype, design: see `architectures.architecture.Architecture`.
  Raises:
    UserError: names the key, its value and the expected one.
  """

  VARIANTS: ClassVar[dict[str, ConvVariant]] = {}
  VARIANT = ConvVariant

  def __init__(
    self,
    rngs: nnx.Rngs,
    *,
    variant: str | ConvVariant,
    backbone: str | dict | None = None,
    resolution: Resolution | None = None,
    channels: PositiveInt | None = None,
    head: str | dict | None = None,
    dropout: Rate = 0.0,
    drop_path: Rate = 0.0,
    dtype: Dtype = "float32",
    remat: str | dict = "none",
    layers: Layers = "scan",
    design: dict = {},
  ):
    variant = resolve_variant(
      self.VARIANTS,
      variant,
      design,
      backbone=backbone,
      resolution=resolution,
      channels=channels,
      head=head,
    )
    quantization = variant.design.quantization
    if quantization != "none":
      raise UserError(
        f"config.model.design.quantization: found {quantization!r}, expected 'none' "
        "for convolutions"
      )
    self.variant = variant
    self.dtype = jnp.dtype(dtype)
    self.remat = policies.build_remat(remat)
    self.backbone = slots.make(
      "config.model.backbone",
      variant.backbone,
      backbones,
      "make",
      rngs=rngs,
      channels=variant.channels,
      drop_path=drop_path,
    )
    if self.backbone.width != variant.width:
      raise UserError(
        f"config.model.backbone: its last map has {self.backbone.width} channels, expected the "
        f"variant's width, {variant.width}"
      )
    self.head = slots.make(
      "config.model.head", variant.head, heads, "make", rngs=rngs, variant=variant, dropout=dropout
    )
    if getattr(self.head, "batch_features", ()):
      raise UserError(
        f"config.model.head: found {variant.head!r}, which reconstructs patches; "
        "convolutions have none"
      )

  def encode(self, image_BYXC: jax.Array, key: jax.Array | None = None):
    """Return (the cells of the last map in raster order, [B, T, D]; no auxiliary scalars)."""
    check_images(image_BYXC, self.variant)
    run_backbone = self.remat.wrap(self.backbone, prevent_cse=True)
    map_BYXD = run_backbone(image_BYXC.astype(self.dtype), key)
    return map_BYXD.reshape(len(map_BYXD), -1, self.variant.width), {}
