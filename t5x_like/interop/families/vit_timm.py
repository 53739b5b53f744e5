"""Plain ViTs of timm, with its names, and with its sizes unless `model_args` has others."""

import re
from typing import Any

from t5x_like.architectures.image_encoder import ImageVariant
from t5x_like.interop import image_encoders, timm
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import Choice, Custom, Field, Required, WriteOnly
from t5x_like.interop.encoders import Head
from t5x_like.interop.image_encoders import CLASS_TOKEN, ImageSize, SquareSide, map_position_table
from t5x_like.interop.tensor_layouts import map_squares, map_stacked
from t5x_like.interop.tensor_mapping import Layout, prefix_table
from t5x_like.interop.timm import TimmHead, TimmType
from t5x_like.models import vit

SIZES = {  # width, layers, heads
  "tiny": (192, 12, 3),
  "small": (384, 12, 6),
  "base": (768, 12, 12),
  "large": (1024, 24, 16),
  "huge": (1280, 32, 16),
}
_NAME = re.compile(rf"vit_({'|'.join(SIZES)})_patch(\d+)_(\d+)(?:_in21k)?")
HEADS = (
  Head("token", "image_classification", {}, {"pooling": "token"}),
  Head("avg", "image_classification", {}, {"pooling": "mean", "norm": "after"}),
  Head("token", "image_features", {}, {"pooling": "token"}),
  Head("avg", "image_features", {}, {"pooling": "mean", "pooler": "norm"}),
)


def _read_defaults(fields: Fields) -> dict[str, Any]:
  """Return the arguments in the name of an architecture."""
  name = fields.values["architecture"]
  match = _NAME.fullmatch(name)
  if match is None:
    raise fields.refusal("architecture", name, "a name like vit_base_patch16_224")
  size, patch, resolution = match.groups()
  width, layers, heads = SIZES[size]
  image_size = timm.read_resolution(fields, int(resolution))
  return {
    "embed_dim": width,
    "depth": layers,
    "num_heads": heads,
    "patch_size": int(patch),
    "img_size": image_size if isinstance(image_size, int) else list(image_size),
  }


def _read_mlp(fields: Fields) -> dict[str, Any]:
  return {"dims.mlp": int(fields.take("embed_dim") * fields.take("mlp_ratio", 4.0))}


def _write_mlp(variant: ImageVariant) -> dict[str, Any]:
  return {"mlp_ratio": variant.dims.mlp / variant.dims.embed}


def _read_layer_scale(fields: Fields) -> dict[str, Any]:
  return {"design.layer_scale": fields.take("init_values", 0.0) or None}


def _write_layer_scale(variant: ImageVariant) -> dict[str, Any]:
  return {"init_values": variant.design.layer_scale}


ARCHITECTURE = WriteOnly("architecture", "vit_base_patch16_224")  # which the arguments change
ARGUMENTS = (
  Field("embed_dim", "dims.embed"),
  Field("depth", "dims.layers"),
  Field("num_heads", "dims.heads"),
  Custom(_read_mlp, _write_mlp),
  image_encoders.BIASES,
  Custom(_read_layer_scale, _write_layer_scale),
  SquareSide("patch_size", "patch"),
  ImageSize("img_size", "resolution"),
  Field("in_chans", "channels", default=3),
  Choice("class_token", "class_tokens", {True: 1, False: 0}, default=True),
  Required("reg_tokens", 0),
  Required("no_embed_class", False),
)
LAYER = {
  "norm1": "self_attention/in_norm",
  "attn.qkv": Layout("self_attention/layer", map_stacked),
  "attn.proj": "self_attention/layer/out",
  "ls1.gamma": "self_attention/res_norm/scale",
  "norm2": "mlp/in_norm",
  "mlp.fc1": "mlp/layer/wi",
  "mlp.fc2": "mlp/layer/wo",
  "ls2.gamma": "mlp/res_norm/scale",
}
TENSORS = {
  "patch_embed.proj": Layout("patches", map_squares),
  "cls_token": CLASS_TOKEN,
  "pos_embed": Layout("", map_position_table),
  **prefix_table("blocks.{layer}.", "encoder/blocks/", LAYER),
  "fc_norm": "head/norm",
  "norm": "encoder/final_norm",
  "head": "head/out",
}
TYPES = (
  TimmType(
    "timm/vit",
    "",
    vit.Model,
    vit.VARIANTS["vit-b16"],
    timm.entries(ARCHITECTURE, TimmHead(HEADS, "head"), ARGUMENTS, _read_defaults),
    TENSORS,
    free=image_encoders.FREE,
  ),
)
