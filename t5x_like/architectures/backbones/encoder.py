"""A ViT, DINOv2 or Swin of `models` as a backbone: the tokens of its last layer as a map."""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like import slots
from t5x_like.architectures.architecture import Dtype, Layers
from t5x_like.architectures.build import resolve_variant
from t5x_like.architectures.image_encoder import ImageEncoder
from t5x_like.errors import UserError
from t5x_like.resolution import Resolution, from_sides, height_and_width
from t5x_like.slots import Rate


class EncoderBackbone(nnx.Module):
  """The patches of an image encoder, in rows and columns; class tokens are left out.

  Images are padded with zeros, below and to the right, to whole patches.

  Args:
    model: a family of image encoders in `models`.
    variant: its variant, a name or all fields.
    resolution: height and width of the images; the detector's task has the same.
    drop_path, design: as in `ImageEncoder`.
    dtype, remat, layers: the detector's.
  """

  def __init__(
    self,
    rngs: nnx.Rngs,
    channels: int,
    *,
    model: str,
    variant: str | dict,
    resolution: Resolution,
    drop_path: Rate = 0.0,
    design: dict = {},
    dtype: Dtype = "float32",
    remat: str | dict = "none",
    layers: Layers = "scan",
  ):
    family = slots.find("config.model.backbone.model", model, "t5x_like.models", "Model")
    if not issubclass(family, ImageEncoder):
      raise UserError(
        f"config.model.backbone.model: found {model!r}, expected a family of image "
        "encoders, as 'vit'"
      )
    if not isinstance(variant, str):
      variant = slots.coerce("config.model.backbone.variant", variant, family.VARIANT)
    variant = resolve_variant(
      family.VARIANTS, variant, design, channels=channels, head="image_features"
    )
    height, width = height_and_width(resolution)
    patch = variant.patch
    self.encoder = family(
      rngs,
      variant=variant,
      resolution=from_sides(-(-height // patch) * patch, -(-width // patch) * patch),
      drop_path=drop_path,
      dtype=dtype,
      remat=remat,
      layers=layers,
    )
    self.width = self.encoder.variant.dims.embed
    self.stride = patch
    self.resolution = resolution

  def __call__(self, image_BYXC: jax.Array, key: jax.Array | None = None) -> jax.Array:
    B, Y, X, _ = image_BYXC.shape
    if (Y, X) != height_and_width(self.resolution):
      raise UserError(
        f"config.model.backbone.resolution: found {self.resolution}, but images of {Y} x {X} "
        "pixels; set it and config.task.resolution to the same"
      )
    variant = self.encoder.variant
    height, width = height_and_width(variant.resolution)
    padded_BYXC = jnp.pad(image_BYXC, ((0, 0), (0, height - Y), (0, width - X), (0, 0)))
    x_BTD, _ = self.encoder.encode(padded_BYXC, key)
    grid = getattr(variant, "grids", (variant.grid,))[-1]
    return x_BTD[:, variant.class_tokens :].reshape(B, grid.rows, grid.columns, self.width)


make = EncoderBackbone
