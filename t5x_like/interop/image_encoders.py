"""Config entries and tables of tensors that ViT and its descendants share."""

import dataclasses
import functools
from typing import Any

from t5x_like.architectures.image_encoder import ImageVariant
from t5x_like.errors import UserError
from t5x_like.interop import encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import Choice, Field, Ignored
from t5x_like.interop.encoders import Head
from t5x_like.interop.tensor_layouts import map_squares, map_token, map_with_leading_axis
from t5x_like.interop.tensor_mapping import Layout, TensorMapping, prefix_table
from t5x_like.interop.variant_paths import get_attribute
from t5x_like.nn.image_positions.sinusoidal_2d import Sinusoidal2d, sine_table
from t5x_like.resolution import from_sides


@dataclasses.dataclass(frozen=True)
class SquareSide(Field):
  """The side length of a square, which a field gives as a number or as an equal pair."""

  def read(self, fields: Fields) -> dict[str, Any]:
    value = fields.take(self.name, self.default)
    if isinstance(value, list) and len(set(value)) == 1:
      value = value[0]
    if not isinstance(value, int):
      raise fields.refusal(self.name, value, "one number, or two equal ones")
    return {self.attribute: value}

  def write(self, variant: Any) -> dict[str, Any]:
    return {self.name: require_square(variant, self.attribute)}


def require_square(variant: Any, attribute: str) -> int:
  """Return the side length in an attribute; raise UserError if height and width differ."""
  side = get_attribute(variant, attribute)
  if not isinstance(side, int):
    raise UserError(f"{attribute} is {side}; this model type supports only squares")
  return side


@dataclasses.dataclass(frozen=True)
class ImageSize(Field):
  """The height and width of images, which a field gives as a number or as a pair."""

  def read(self, fields: Fields) -> dict[str, Any]:
    value = fields.take(self.name, self.default)
    if isinstance(value, int):
      return {self.attribute: value}
    is_pair = isinstance(value, list | tuple) and len(value) == 2
    if is_pair and all(isinstance(side, int) for side in value):
      return {self.attribute: from_sides(*value)}
    raise fields.refusal(self.name, value, "one number, or height and width")

  def write(self, variant: Any) -> dict[str, Any]:
    resolution = get_attribute(variant, self.attribute)
    return {self.name: resolution if isinstance(resolution, int) else list(resolution)}


@dataclasses.dataclass(frozen=True)
class StageWidth(Field):
  """The width of a backbone's last stage: the last number of a field, read but not written."""

  written: bool = False

  def read(self, fields: Fields) -> dict[str, Any]:
    return {path: widths[-1] for path, widths in super().read(fields).items()}


# Attributes without effect on the logits of images as `transformers` prepares them.
FREE = (*encoders.FILES["free"], "design.logits_scale", "patch_scale", "partial_patches")
PRETRAINED_SIZE = ImageSize("image_size", "resolution", default=224)
CHANNELS = Field("num_channels", "channels", default=3)
BIASES = Choice(
  "qkv_bias", "design.biases", {True: ("qkv", "out", "mlp"), False: ("out", "mlp")}, default=True
)
SIZES = (
  Field("hidden_size", "dims.embed"),
  Field("num_hidden_layers", "dims.layers"),
  Field("num_attention_heads", "dims.heads"),
)
COMMON = (
  *SIZES,
  BIASES,
  CHANNELS,
  encoders.DROPOUT_RATES,
  Ignored("encoder_stride", "pooler_act", "pooler_output_size"),
  Ignored("layer_norm_type", "image_mean", "image_std"),
)
VIT = (
  *COMMON,
  Field("intermediate_size", "dims.mlp"),
  encoders.ACTIVATION,
  Field("layer_norm_eps", "design.norm_epsilon", default=1e-12),
  SquareSide("patch_size", "patch", default=16),
  PRETRAINED_SIZE,
)
CLASSIFIER = Head("ForImageClassification", "image_classification", {"classifier": "out"})
BODIES = (
  Head("Model", "image_features", {"pooler.dense": "dense"}, arguments={"pooler": "dense"}),
  Head("Model", "image_features", {}),
)


def map_position_table(
  mapping: TensorMapping, hf_name: str, path: str, *, inputs: str = "inputs"
) -> None:
  """Map [1, T, D], a table of positions; of sines, which need no parameter, write the table.

  Args:
    inputs: the path of the module that adds the positions.
  """
  table = f"{inputs}/position/table"
  if table in mapping.parameter_names:
    map_with_leading_axis(mapping, hf_name, table)
    return
  scheme = functools.reduce(getattr, inputs.split("/"), mapping.model).position
  if isinstance(scheme, Sinusoidal2d):
    # No parameter of ours takes part: reading drops the table, and writing computes it.
    mapping.fuse(
      hf_name,
      [],
      split=lambda x: [],
      join=lambda arrays: sine_table(scheme.width, scheme.grid)[None],
    )


ATTENTION = {
  "attention.attention.query": "self_attention/layer/query",
  "attention.attention.key": "self_attention/layer/key",
  "attention.attention.value": "self_attention/layer/value",
  "attention.output.dense": "self_attention/layer/out",
}
LAYER = {
  **ATTENTION,
  "layernorm_before": "self_attention/in_norm",
  "layernorm_after": "mlp/in_norm",
  "intermediate.dense": "mlp/layer/wi",
  "output.dense": "mlp/layer/wo",
}
CLASS_TOKEN = Layout("tokens", functools.partial(map_token, number=0))
EMBEDDINGS = {
  "embeddings.patch_embeddings.projection": Layout("patches", map_squares),
  "embeddings.cls_token": CLASS_TOKEN,
  "embeddings.position_embeddings": Layout("", map_position_table),
}
TENSORS = {
  **EMBEDDINGS,
  **prefix_table("encoder.layer.{layer}.", "encoder/blocks/", LAYER),
  "layernorm": "encoder/final_norm",
}


def require_position_table(variant: ImageVariant) -> dict[str, Any]:
  """Raise UserError for positions that a file cannot hold as a table; return no fields."""
  position = variant.design.position
  if position not in ("learned_1d", "sinusoidal_2d"):
    raise UserError(
      f"design.position is {position!r}; this model type supports only 'learned_1d' or "
      "'sinusoidal_2d'"
    )
  return {}
