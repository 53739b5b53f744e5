"""DINOv2, with and without registers, as an image classifier or without a head."""

import dataclasses
import functools
from typing import Any

from t5x_like.architectures.image_encoder import ImageVariant
from t5x_like.errors import UserError
from t5x_like.interop import encoders, image_encoders
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.config_table import Custom, Entry, Field, Ignored, ModelType, Required
from t5x_like.interop.encoders import Classes, EncoderTensors, Head
from t5x_like.interop.image_encoders import ImageSize, SquareSide, require_square
from t5x_like.interop.tensor_layouts import map_stacked, map_with_leading_axis
from t5x_like.interop.tensor_mapping import Layout, TensorMapping, prefix_table
from t5x_like.models import dinov2

CLASSIFIER = dataclasses.replace(image_encoders.CLASSIFIER, arguments={"pooling": "both"})
HEADS = (CLASSIFIER, Head("Model", "image_features", {}))


@dataclasses.dataclass(frozen=True)
class SquareImageSize(ImageSize):
  """An image size that is written only if square: `transformers` resizes a square of positions."""

  def write(self, variant: ImageVariant) -> dict[str, Any]:
    return {self.name: require_square(variant, self.attribute)}


def _read_mlp(fields: Fields) -> dict[str, Any]:
  """Return the feed-forward width and activation; `use_swiglu_ffn` overrides `hidden_act`."""
  width = int(fields.take("hidden_size", 768) * fields.take("mlp_ratio", 4))
  activation = fields.choose("hidden_act", encoders.ACTIVATIONS, "gelu")
  if fields.choose("use_swiglu_ffn", {True: True, False: False}, False):
    return {"dims.mlp": _swiglu_width(width), "design.activation": "swiglu"}
  return {"dims.mlp": width, "design.activation": activation}


def _swiglu_width(mlp: int) -> int:
  """Return two thirds of a plain layer's width, rounded up to a multiple of 8, for a SwiGLU."""
  return (mlp * 2 // 3 + 7) // 8 * 8


def _write_mlp(variant: ImageVariant) -> dict[str, Any]:
  activation = variant.design.activation
  is_gated = activation == "swiglu"
  if not is_gated and activation not in encoders.ACTIVATIONS.values():
    raise UserError(
      f"design.activation is {activation!r}; dinov2 supports no other gate than 'swiglu'"
    )
  return {
    "mlp_ratio": _mlp_ratio(variant, is_gated),
    "hidden_act": "gelu" if is_gated else find_key(encoders.ACTIVATIONS, activation),
    "use_swiglu_ffn": is_gated,
  }


def _mlp_ratio(variant: ImageVariant, is_gated: bool) -> int:
  """Return the whole number for `mlp_ratio` that gives a variant's feed-forward width."""
  dims = variant.dims
  for ratio in range(1, 17):
    width = ratio * dims.embed
    if dims.mlp == (_swiglu_width(width) if is_gated else width):
      return ratio
  raise UserError(
    f"{dims}: dinov2 supports only an mlp for which mlp_ratio is a whole number from 1 to 16"
  )


def _read_registers(fields: Fields) -> dict[str, Any]:
  registers = fields.take("num_register_tokens", 4)
  position = dinov2.ANTIALIASED if registers else "learned_1d"
  return {"registers": registers, "design.position": position}


def _write_registers(variant: ImageVariant) -> dict[str, Any]:
  if not variant.registers:
    raise UserError("registers is 0; dinov2_with_registers has 1 or more")
  position = variant.design.position
  if position not in ("learned_1d", dinov2.ANTIALIASED):
    raise UserError(
      f"design.position is {position!r}; dinov2_with_registers supports only 'learned_1d' or "
      f"{dinov2.ANTIALIASED!r}"
    )
  return {"num_register_tokens": variant.registers}


DINOV2 = (
  *image_encoders.COMMON,
  Custom(_read_mlp, _write_mlp),
  Field("layer_norm_eps", "design.norm_epsilon", default=1e-6),
  Field("layerscale_value", "design.layer_scale", default=1.0),
  SquareImageSize("image_size", "resolution", default=224),
  Required("apply_layernorm", True),
  Ignored("drop_path_rate", "use_mask_token", "reshape_hidden_states", "stage_names"),
  Ignored("out_features", "out_indices", "_out_features", "_out_indices"),
)
MLP = {"mlp.fc1": "mlp/layer/wi", "mlp.fc2": "mlp/layer/wo"}
GATED_MLP = {
  "mlp.weights_in": Layout("mlp/layer", functools.partial(map_stacked, parts=("gate", "wi"))),
  "mlp.weights_out": "mlp/layer/wo",
}
LAYER = {
  **image_encoders.ATTENTION,
  "norm1": "self_attention/in_norm",
  "layer_scale1.lambda1": "self_attention/res_norm/scale",
  "norm2": "mlp/in_norm",
  "layer_scale2.lambda1": "mlp/res_norm/scale",
}
BODY = {
  **image_encoders.EMBEDDINGS,
  "embeddings.register_tokens": Layout("registers", map_with_leading_axis),
  "layernorm": "encoder/final_norm",
}


def _model_type(
  name: str, prefix: str, entries: tuple[Entry, ...], free: tuple[str, ...] = ()
) -> ModelType:
  """Return a model type with further entries.

  Args:
    prefix: the prefix of its class names.
    free: further attributes that its config does not express.
  """

  def map_tensors(mapping: TensorMapping) -> None:
    is_gated = mapping.model.variant.design.activation == "swiglu"
    layer = LAYER | (GATED_MLP if is_gated else MLP)
    layers = prefix_table("encoder.layer.{layer}.", "encoder/blocks/", layer)
    EncoderTensors(name, HEADS, BODY | layers, unread=("embeddings.mask_token",))(mapping)

  return ModelType(
    name,
    "",  # `Classes` writes the class name.
    dinov2.Model,
    dinov2.VARIANTS["dinov2-b14"],
    (*DINOV2, *entries, Classes(prefix, HEADS)),
    map_tensors,
    free=(*image_encoders.FREE, *free),
  )


TYPES = (
  _model_type("dinov2", "Dinov2", (SquareSide("patch_size", "patch", default=14),)),
  _model_type(
    "dinov2_with_registers",
    "Dinov2WithRegisters",
    (
      SquareSide("patch_size", "patch", default=16),
      Custom(_read_registers, _write_registers),
    ),
    free=("design.position",),
  ),
)
