"""DETR as an object detector, with a ResNet of `transformers` or of timm.

The two libraries name the tensors of a ResNet differently. A file's names are kept when it is
written again; a model that was not loaded is written with the names of `transformers`.
"""

import functools
import json
from collections.abc import Callable
from typing import Any

from t5x_like.contrib.detection.detector import DetectorVariant
from t5x_like.contrib.detection.models import detr
from t5x_like.errors import UserError
from t5x_like.interop import encoders, image_encoders, resnet
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import (
  Choice,
  Constant,
  Custom,
  Field,
  Ignored,
  ModelType,
  Required,
)
from t5x_like.interop.tensor_layouts import map_squares
from t5x_like.interop.tensor_mapping import Layout, prefix_table
from t5x_like.interop.variant_paths import complete_spec

BACKBONE = "model.backbone.conv_encoder.model."
_DILATED = {"last_stage": "dilated"}


def canonical_name(name: str) -> str:
  """Translate a tensor's name from timm to `transformers`; return other names unchanged."""
  if not name.startswith(BACKBONE):
    return name
  return BACKBONE + resnet.transformers_name(name.removeprefix(BACKBONE))


def timm_name(name: str) -> str:
  """Translate a tensor's name from `transformers` to timm; return other names unchanged."""
  if not name.startswith(BACKBONE):
    return name
  return BACKBONE + resnet.timm_name(name.removeprefix(BACKBONE))


def _read_heads(fields: Fields) -> dict[str, Any]:
  """Return the number of heads, which both stacks share."""
  heads = fields.take("encoder_attention_heads", 8)
  decoder_heads = fields.take("decoder_attention_heads", 8)
  if decoder_heads != heads:
    raise fields.refusal("decoder_attention_heads", decoder_heads, f"{heads}, as the encoder has")
  return {"dims.heads": heads}


def _write_heads(variant: DetectorVariant) -> dict[str, Any]:
  heads = variant.dims.heads
  return {"encoder_attention_heads": heads, "decoder_attention_heads": heads}


def _read_labels(fields: Fields) -> dict[str, Any]:
  return {"labels": encoders.count_labels(fields)}


def _write_labels(variant: DetectorVariant) -> dict[str, Any]:
  return encoders.label_fields(variant.labels)


def _read_backbone(fields: Fields) -> dict[str, Any]:
  """Return the backbone, a ResNet of `transformers` or of timm."""
  section = fields.section("backbone_config")
  section.require("num_channels", fields.take("num_channels", 3))
  is_dilated = fields.choose("dilation", {True: True, False: False}, False)
  name = fields.take("backbone", "resnet50")
  model_type = section.values.get("model_type") or "timm_backbone"
  if model_type == "resnet":
    if is_dilated:
      raise fields.refusal("dilation", True, "False with a ResNet of transformers")
    return {"backbone": _read_transformers_backbone(section)}
  if model_type != "timm_backbone":
    raise section.refusal("model_type", model_type, "'resnet' or 'timm_backbone'")
  name = section.take("backbone", name)
  section.require("output_stride", 32, 16, None)
  architecture = name.partition(".")[0]
  if architecture not in resnet.TIMM_BACKBONES:
    raise fields.refusal("backbone", name, " or ".join(resnet.TIMM_BACKBONES))
  backbone = {"name": "resnet", **resnet.TIMM_BACKBONES[architecture]}
  if is_dilated or section.values.get("output_stride") == 16:
    backbone |= _DILATED
  return {"backbone": backbone}


def _read_transformers_backbone(section: Fields) -> dict[str, Any]:
  """Return the backbone in a section with a ResNet of `transformers`."""
  values: dict[str, Any] = {}
  for entry in resnet.BACKBONE:
    values |= entry.read(section)
  backbone = {path.removeprefix("backbone."): value for path, value in values.items()}
  last_stage = f"stage{len(backbone['depths'])}"
  features = section.take("out_features", None) or [last_stage]
  if features[-1] != last_stage:
    raise section.refusal("out_features", features, f"{last_stage} last")
  return {"name": "resnet", **backbone}


def _write_backbone(variant: DetectorVariant) -> dict[str, Any]:
  """Return the fields of a backbone: a ResNet of `transformers`, or of timm if it is dilated."""
  backbone = complete_spec(variant.backbone)
  if backbone["name"] != "resnet":
    raise UserError(f"the backbone {backbone}: detr has 'resnet' with norm 'frozen_batch'")
  if backbone["last_stage"] == "strided":
    section: dict[str, Any] = {"model_type": "resnet", "num_channels": variant.channels}
    for entry in resnet.BACKBONE:
      section |= entry.write(variant)
    section["out_features"] = [f"stage{len(backbone['depths'])}"]
    return {"backbone_config": section}
  for name, arguments in resnet.TIMM_BACKBONES.items():
    timm_backbone = complete_spec({"name": "resnet", **arguments, **_DILATED})
    if timm_backbone | {"groups": backbone["groups"]} == backbone:
      return {
        "use_timm_backbone": True,
        "use_pretrained_backbone": False,
        "backbone": name,
        "dilation": True,
      }
  raise UserError(
    f"the backbone {backbone}: detr's dilated ones are {' or '.join(resnet.TIMM_BACKBONES)} of timm"
  )


class _Detr(ModelType):
  def file_naming(self, model: detr.Model) -> Callable[[str], str]:
    """Return a function that names tensors: as timm does in a model that has its ResNet."""
    is_dilated = complete_spec(model.variant.backbone)["last_stage"] == "dilated"
    return timm_name if is_dilated or self._has_timm(model) else str

  def _has_timm(self, model: detr.Model) -> bool:
    """Return whether a model comes from a file with timm's ResNet, and still matches its config."""
    origin = getattr(model, "origin", None)
    if origin is None:
      return False
    values = json.loads(origin.config)
    backbone = values.get("backbone_config") or {}
    if values.get("model_type") != "detr":
      return False
    if backbone.get("model_type", "timm_backbone") != "timm_backbone":
      return False
    return self.read_variant(Fields(values, origin.path)) == model.variant


DETR = (
  Custom(_read_backbone, _write_backbone),
  Field("d_model", "dims.embed", default=256),
  Field("encoder_layers", "dims.layers", default=6),
  Field("decoder_layers", "decoder_layers", default=6),
  Field("encoder_ffn_dim", "dims.mlp", default=2048),
  Field("decoder_ffn_dim", "decoder_mlp", default=2048),
  Custom(_read_heads, _write_heads),
  Choice("activation_function", "design.activation", encoders.ACTIVATIONS, default="relu"),
  Field("num_queries", "queries", default=100),
  image_encoders.CHANNELS,
  Custom(_read_labels, _write_labels),
  Required("architectures", ["DetrForObjectDetection"]),
  Constant("position_embedding_type", "sine"),
  Required("scale_embedding", False),
  Ignored("dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop"),
  Ignored("decoder_layerdrop", "init_xavier_std", "auxiliary_loss", "class_cost", "bbox_cost"),
  Ignored("giou_cost", "mask_loss_coefficient", "dice_loss_coefficient", "bbox_loss_coefficient"),
  Ignored("giou_loss_coefficient", "eos_coefficient", "num_hidden_layers"),
  Ignored("max_position_embeddings", "use_pretrained_backbone", "use_timm_backbone"),
  Ignored("backbone_kwargs"),
)
ENCODER_LAYER = {
  "self_attn.q_proj": "self_attention/layer/query",
  "self_attn.k_proj": "self_attention/layer/key",
  "self_attn.v_proj": "self_attention/layer/value",
  "self_attn.out_proj": "self_attention/layer/out",
  "self_attn_layer_norm": "self_attention/out_norm",
  "fc1": "mlp/layer/wi",
  "fc2": "mlp/layer/wo",
  "final_layer_norm": "mlp/out_norm",
}
DECODER_LAYER = {
  **ENCODER_LAYER,
  "encoder_attn.q_proj": "cross_attention/layer/query",
  "encoder_attn.k_proj": "cross_attention/layer/key",
  "encoder_attn.v_proj": "cross_attention/layer/value",
  "encoder_attn.out_proj": "cross_attention/layer/out",
  "encoder_attn_layer_norm": "cross_attention/out_norm",
}
TENSORS = {
  **prefix_table(BACKBONE, "", resnet.TRANSFORMERS_TENSORS),
  "model.input_projection": Layout("project", functools.partial(map_squares, side=1)),
  "model.query_position_embeddings.weight": "queries",
  **prefix_table("model.encoder.layers.{layer}.", "encoder/blocks/", ENCODER_LAYER),
  **prefix_table("model.decoder.layers.{layer}.", "decoder/blocks/", DECODER_LAYER),
  "model.decoder.layernorm": "decoder_norm",
  "class_labels_classifier": "classes",
  "bbox_predictor.layers.{unit}": "boxes/{unit}",
}
TYPES = (
  _Detr(
    "detr",
    "DetrForObjectDetection",
    detr.Model,
    detr.VARIANTS["detr-resnet50"],
    DETR,
    TENSORS,
    ignored_suffixes=resnet.IGNORED_SUFFIXES,
    canonical_name=canonical_name,
    free=(*image_encoders.FREE, "backbone.groups"),
  ),
)
