"""ConvNeXt, as an image classifier or without a head."""

import dataclasses
import functools
from typing import Any

from t5x_like.architectures.conv_encoder import ConvVariant
from t5x_like.interop import encoders, image_encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import Choice, Custom, Field, Ignored, ModelType, Numbers
from t5x_like.interop.encoders import Classes, EncoderTensors, Head
from t5x_like.interop.image_encoders import SquareSide, StageWidth
from t5x_like.interop.tensor_layouts import map_convolution, map_squares
from t5x_like.interop.tensor_mapping import Layout, prefix_table
from t5x_like.interop.variant_paths import get_attribute
from t5x_like.models import convnext

WIDTHS = (96, 192, 384, 768)
HEADS = (
  dataclasses.replace(image_encoders.CLASSIFIER, arguments={"norm": "after"}),
  Head("Model", "image_features", {}, {"pooler": "norm"}),
)


def _ignore_stages(fields: Fields) -> dict[str, Any]:
  fields.ignore("num_stages")
  return {}


def _write_stages(variant: ConvVariant) -> dict[str, Any]:
  return {"num_stages": len(get_attribute(variant, "backbone.depths"))}


CONVNEXT = (
  SquareSide("patch_size", "backbone.patch", default=4),
  Numbers("hidden_sizes", "backbone.widths", default=WIDTHS),
  StageWidth("hidden_sizes", "width", default=WIDTHS),
  Numbers("depths", "backbone.depths", default=(3, 3, 9, 3)),
  Custom(_ignore_stages, _write_stages),
  Choice("hidden_act", "backbone.activation", encoders.ACTIVATIONS, default="gelu"),
  Field("layer_scale_init_value", "backbone.layer_scale", default=1e-6),
  Field("layer_norm_eps", "design.norm_epsilon", default=1e-12),
  image_encoders.PRETRAINED_SIZE,
  image_encoders.CHANNELS,
  Classes("ConvNext", HEADS),
  Ignored("drop_path_rate", "stage_names"),
  Ignored("out_features", "out_indices", "_out_features", "_out_indices"),
)
BLOCK = {
  "dwconv": Layout("depthwise", map_convolution),
  "layernorm": "norm",
  "pwconv1": "wi",
  "pwconv2": "wo",
  "layer_scale_parameter": "scale/scale",
}
TENSORS = {
  "embeddings.patch_embeddings": Layout("backbone/patches", map_squares),
  "embeddings.layernorm": "backbone/norm",
  "encoder.stages.{stage+1}.downsampling_layer.0": "backbone/merge_norms/{stage}",
  "encoder.stages.{stage+1}.downsampling_layer.1": Layout(
    "backbone/merges/{stage}", functools.partial(map_squares, side=2)
  ),
  **prefix_table(
    "encoder.stages.{stage}.layers.{block}.", "backbone/stages/{stage}/{block}/", BLOCK
  ),
  "layernorm": "head/norm",
}
TYPES = (
  ModelType(
    "convnext",
    "",
    convnext.Model,
    convnext.VARIANTS["convnext-t"],
    CONVNEXT,
    EncoderTensors("convnext", HEADS, TENSORS, unread=()),
    free=("design",),  # apart from the epsilon, no output depends on it
  ),
)
