"""Swin Transformers, as image classifiers or without a head; version 2 shares their tables."""

import dataclasses
from typing import Any

from t5x_like.architectures.window_encoder import WindowVariant
from t5x_like.errors import UserError
from t5x_like.interop import encoders, image_encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import (
  Choice,
  Custom,
  Entry,
  Field,
  Ignored,
  ModelType,
  Numbers,
)
from t5x_like.interop.encoders import Classes, EncoderTensors, Head
from t5x_like.interop.image_encoders import SquareSide, map_position_table
from t5x_like.interop.tensor_layouts import map_squares
from t5x_like.interop.tensor_mapping import Layout, TensorTable, prefix_table
from t5x_like.models import swin
from t5x_like.resolution import height_and_width

HEADS = (image_encoders.CLASSIFIER, Head("Model", "image_features", {}))
# The positions at the patches that a file can express; sinusoids are written as a table.
_PATCH_POSITIONS = ("none", "learned_1d", "sinusoidal_2d")


def _read_absolute_positions(fields: Fields) -> dict[str, Any]:
  table = {True: "learned_1d", False: "none"}
  return {"patch_position": fields.choose("use_absolute_embeddings", table, False)}


def _write_absolute_positions(variant: WindowVariant) -> dict[str, Any]:
  if variant.patch_position not in _PATCH_POSITIONS:
    raise UserError(
      f"config.model.patch_position: found {variant.patch_position!r}; this model type supports "
      f"only {' or '.join(map(repr, _PATCH_POSITIONS))}"
    )
  is_absolute = variant.patch_position != "none"
  sides = height_and_width(variant.resolution)
  if is_absolute and any(side % variant.patch for side in sides):
    raise UserError(
      f"config.model.resolution: found {variant.resolution} with positions at patches of "
      f"{variant.patch} pixels; this model type supports only multiples of the patch"
    )
  return {"use_absolute_embeddings": is_absolute}


@dataclasses.dataclass(frozen=True)
class WindowSize(Field):
  """The side length of windows, which must fit in the grid of the last stage."""

  def write(self, variant: WindowVariant) -> dict[str, Any]:
    last = variant.grids[-1]
    if min(last.rows, last.columns) < variant.window:
      raise UserError(
        f"the last stage has {last.rows} x {last.columns} tokens, fewer than a window of "
        f"{variant.window}, with which transformers' swin fails"
      )
    return super().write(variant)


def entries(bias: str) -> tuple[Entry, ...]:
  """Return the entries of both versions.

  Args:
    bias: the entry of `design.biases` for `qkv_bias`.
  """
  biases = {True: (bias, "out", "mlp"), False: ("out", "mlp")}
  return (
    Field("embed_dim", "embed", default=96),
    Numbers("depths", "depths", default=(2, 2, 6, 2)),
    Numbers("num_heads", "heads", default=(3, 6, 12, 24)),
    Field("mlp_ratio", "mlp_ratio", default=4.0),
    encoders.ACTIVATION,
    Field("layer_norm_eps", "design.norm_epsilon", default=1e-5),
    Choice("qkv_bias", "design.biases", biases, default=True),
    Custom(_read_absolute_positions, _write_absolute_positions),
    SquareSide("patch_size", "patch", default=4),
    image_encoders.PRETRAINED_SIZE,
    image_encoders.CHANNELS,
    encoders.DROPOUT_RATES,
    Ignored("drop_path_rate", "encoder_stride", "path_norm", "num_layers", "hidden_size"),
    Ignored("out_features", "out_indices", "stage_names"),
  )


SWIN = (*entries("qkv"), WindowSize("window_size", "window", default=7), Classes("Swin", HEADS))
LAYER = {
  "attention.self.query": "self_attention/layer/query",
  "attention.self.key": "self_attention/layer/key",
  "attention.self.value": "self_attention/layer/value",
  "attention.output.dense": "self_attention/layer/out",
  "intermediate.dense": "mlp/layer/wi",
  "output.dense": "mlp/layer/wo",
}
STAGES = {
  "embeddings.patch_embeddings.projection": Layout("patches", map_squares),
  "embeddings.norm": "inputs/norm",
  "embeddings.position_embeddings": Layout("", map_position_table),
  "encoder.layers.{stage-2}.downsample.reduction": "stage_{stage}/entry/linear",
  "encoder.layers.{stage-2}.downsample.norm": "stage_{stage}/entry/norm",
  "layernorm": "final_norm",
}


def tensors(layer: TensorTable) -> TensorTable:
  """Return the tensors of a body.

  Args:
    layer: the tensors of a layer that differ between versions 1 and 2.
  """
  layers = prefix_table(
    "encoder.layers.{stage-1}.blocks.{layer}.", "stage_{stage}/stack/blocks/", LAYER | layer
  )
  return STAGES | layers


SWIN_LAYER = {
  "layernorm_before": "self_attention/in_norm",
  "layernorm_after": "mlp/in_norm",
  "attention.self.relative_position_bias_table": "self_attention/layer/position/table",
}
# Keyword arguments of `ModelType`.
FILES = dict(
  ignored_suffixes=("relative_position_index", "relative_coords_table"),
  free=(*image_encoders.FREE, "patch_position", "pretrained_windows"),
)
TYPES = (
  ModelType(
    "swin",
    "",
    swin.Model,
    swin.VARIANTS["swin-t"],
    SWIN,
    EncoderTensors("swin", HEADS, tensors(SWIN_LAYER), unread=()),
    **FILES,
  ),
)
