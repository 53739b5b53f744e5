"""ResNet with frozen batch norm, as an image classifier or without a head.

Tensors have the names of `transformers` or of timm. A model keeps the names of its files. Others
are written with the names of `transformers`, unless it cannot express them.
"""

from typing import Any

from t5x_like.architectures.conv_encoder import ConvVariant
from t5x_like.errors import UserError
from t5x_like.interop import image_encoders, resnet, timm
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import Custom, Field, Ignored, ModelType, Numbers
from t5x_like.interop.encoders import Classes, EncoderTensors, Head
from t5x_like.interop.image_encoders import StageWidth
from t5x_like.interop.timm import TimmHead, TimmType
from t5x_like.interop.variant_paths import complete_spec, get_attribute
from t5x_like.models import resnet as models

HEADS = (
  Head("ForImageClassification", "image_classification", {"classifier.1": "out"}),
  Head("Model", "image_features", {}),
)
RESNET = (
  *resnet.BACKBONE,
  StageWidth("hidden_sizes", "width", default=resnet.WIDTHS),
  image_encoders.PRETRAINED_SIZE,  # a field of ours: `transformers` takes any size
  image_encoders.CHANNELS,
  Classes("ResNet", HEADS),
  Ignored("out_features", "out_indices", "stage_names", "_out_features", "_out_indices"),
)

TIMM_HEADS = (
  Head("avg", "image_classification", {}),
  Head("avg", "image_features", {}),
)
_STRIDES = {32: "strided", 16: "dilated"}


def _timm_backbone(fields: Fields) -> dict[str, Any]:
  """Return the arguments of the backbone that an architecture has by itself."""
  name = fields.values["architecture"]
  if name not in resnet.TIMM_BACKBONES:
    raise fields.refusal("architecture", name, " or ".join(resnet.TIMM_BACKBONES))
  return complete_spec({"name": "resnet", **resnet.TIMM_BACKBONES[name]})


def _expansion(block: str) -> int:
  """Return the ratio of a block's output channels to the channels of its inner convolution."""
  return 4 if block == "bottleneck" else 1


def _read_blocks(fields: Fields) -> dict[str, Any]:
  """Return the kind and the widths of blocks; `channels` has the widths of inner convolutions."""
  backbone = _timm_backbone(fields)
  block = backbone["block"]
  widths = backbone["widths"]
  channels = (fields.values.get("model_args") or {}).get("channels")
  if channels:
    widths = tuple(_expansion(block) * width for width in channels)
  return {"backbone.block": block, "backbone.widths": widths, "width": widths[-1]}


def _write_blocks(variant: ConvVariant) -> dict[str, Any]:
  depths = get_attribute(variant, "backbone.depths")
  if len(depths) != 4:
    raise UserError(f"the backbone has {len(depths)} stages; timm's resnet has 4")
  is_bottleneck = get_attribute(variant, "backbone.block") == "bottleneck"
  return {"architecture": "resnet50" if is_bottleneck else "resnet18"}


def _ignore_channels(fields: Fields) -> dict[str, Any]:
  fields.ignore("channels")
  return {}


def _write_channels(variant: ConvVariant) -> dict[str, Any]:
  expansion = _expansion(get_attribute(variant, "backbone.block"))
  widths = get_attribute(variant, "backbone.widths")
  return {"channels": [width // expansion for width in widths]}


def _read_stride(fields: Fields) -> dict[str, Any]:
  stride = fields.take("output_stride", 32)
  if stride not in _STRIDES:
    raise fields.refusal("output_stride", stride, " or ".join(map(str, _STRIDES)))
  return {"backbone.last_stage": _STRIDES[stride]}


def _write_stride(variant: ConvVariant) -> dict[str, Any]:
  is_dilated = get_attribute(variant, "backbone.last_stage") == "dilated"
  return {"output_stride": 16 if is_dilated else 32}


def _read_resolution(fields: Fields) -> dict[str, Any]:
  return {"resolution": timm.read_resolution(fields, 224)}


ARGUMENTS = (
  Numbers("layers", "backbone.depths"),
  Custom(_ignore_channels, _write_channels),
  Custom(_read_stride, _write_stride),
  Field("in_chans", "channels", default=3),
)
TIMM = (
  *timm.entries(
    Custom(_read_blocks, _write_blocks),
    TimmHead(TIMM_HEADS, "fc"),
    ARGUMENTS,
    lambda fields: {"layers": list(_timm_backbone(fields)["depths"])},
  ),
  Custom(_read_resolution),
)
# Of both types; no output depends on the design.
FILES = dict(ignored_suffixes=resnet.IGNORED_SUFFIXES, free=("design", "backbone.groups"))
TYPES = (
  ModelType(
    "resnet",
    "",
    models.Model,
    models.VARIANTS["resnet-50"],
    RESNET,
    EncoderTensors("resnet", HEADS, resnet.TRANSFORMERS_TENSORS, unread=()),
    **FILES,
  ),
  TimmType(
    "timm/resnet",
    "",
    models.Model,
    models.VARIANTS["resnet-50"],
    TIMM,
    resnet.TIMM_TENSORS | {"fc": "head/out"},
    **FILES,
  ),
)
