"""Plain ViTs of timm, with its names, and with its sizes unless `model_args` has others."""

import re
from dataclasses import replace

from t5x_like.errors import UserError
from t5x_like.interop import fused_tensors, image_encoders, timm
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import vit
from t5x_like.nn.dims import Dims
from t5x_like.resolution import height_and_width

MODEL_TYPES = ("timm/vit",)
MODELS = (vit.Model,)
SIZES = {  # width, layers, heads
  "tiny": (192, 12, 3),
  "small": (384, 12, 6),
  "base": (768, 12, 12),
  "large": (1024, 24, 16),
  "huge": (1280, 32, 16),
}
_NAME = re.compile(rf"vit_({'|'.join(SIZES)})_patch(\d+)_(\d+)(?:_in21k)?")
_HEADS = {  # whether it classifies, and the pooling
  (True, "token"): {"name": "image_classification", "pooling": "token"},
  (True, "avg"): {"name": "image_classification", "pooling": "mean", "norm": "after"},
  (False, "token"): {"name": "image_features", "pooling": "token"},
  (False, "avg"): {"name": "image_features", "pooling": "mean", "pooler": "norm"},
}


def read_config(fields: Fields, tensor_names: set[str]):
  name = _NAME.fullmatch(fields.values["architecture"])
  if not name:
    raise fields.refusal(
      "architecture", fields.values["architecture"], "a name like vit_base_patch16_224"
    )
  width, layers, heads = SIZES[name[1]]
  given = timm.read_arguments(fields)
  given.require("reg_tokens", 0)
  given.require("no_embed_class", False)
  labels = timm.count_labels(fields)
  pooling = fields.values.get("global_pool") or "token"
  given.require("global_pool", pooling)
  if (labels > 0, pooling) not in _HEADS:
    raise fields.refusal("global_pool", pooling, "'token' or 'avg'")
  D = given.take("embed_dim", width)
  N = given.take("num_heads", heads)
  biases = given.choose("qkv_bias", {True: ("qkv", "out", "mlp"), False: ("out", "mlp")}, True)
  variant = replace(
    vit.VARIANTS["vit-b16"],
    dims=Dims(D, N, N, D // N, int(D * given.take("mlp_ratio", 4.0)), given.take("depth", layers)),
    design=replace(vit.DESIGN, biases=biases, layer_scale=given.take("init_values", 0.0) or None),
    patch=image_encoders.read_side(given, "patch_size", int(name[2])),
    resolution=image_encoders.read_resolution(
      given, "img_size", timm.read_resolution(fields, int(name[3]))
    ),
    channels=given.take("in_chans", 3),
    class_tokens=int(given.choose("class_token", {True: True, False: False}, True)),
    head=_HEADS[labels > 0, pooling] | ({"labels": labels} if labels else {}),
  )
  given.refuse_unused()
  return vit.Model, {"variant": variant}


def write_config(model, model_type: str | None) -> dict:
  variant = model.variant
  dims = model.variant.dims
  spec = variant.head if isinstance(variant.head, dict) else {"name": variant.head}
  usual = {"pooling": "token" if variant.class_tokens else "mean", "hidden": False}
  usual |= {"norm": "before"} if spec["name"] == "image_classification" else {"pooler": "none"}
  meant = {key: spec.get(key) or value for key, value in usual.items()} | {"name": spec["name"]}
  found = next(
    (key for key, head in _HEADS.items() if {**meant, **head} == meant and not meant["hidden"]),
    None,
  )
  if found is None or variant.registers or variant.class_tokens > 1:
    told = f"the head {spec}, {variant.class_tokens} class tokens and {variant.registers} registers"
    raise UserError(
      f"{told}: timm's vit has 'image_classification' or 'image_features', at most 1 and 0"
    )
  fields = image_encoders.write_config(model, "timm's vit", layer_scale=variant.design.layer_scale)
  if (fields["layer_norm_eps"], fields["hidden_act"]) != (1e-6, "gelu"):
    found = f"design.norm_epsilon is {fields['layer_norm_eps']}, activation {fields['hidden_act']}"
    raise UserError(f"{found}: timm's vit has 1e-6 and gelu")
  return timm.write_config(
    "vit_base_patch16_224",  # which `model_args` change
    "head",
    dims.embed,
    spec.get("labels", 1000) if found[0] else 0,
    found[1],
    (variant.channels, *height_and_width(variant.resolution)),
    img_size=variant.resolution,
    patch_size=variant.patch,
    embed_dim=dims.embed,
    depth=dims.layers,
    num_heads=dims.heads,
    mlp_ratio=dims.mlp / dims.embed,
    qkv_bias=fields["qkv_bias"],
    init_values=variant.design.layer_scale,
    class_token=bool(variant.class_tokens),
  )


def map_tensors(mapping: TensorMapping) -> None:
  image_encoders.map_patches(mapping, "patch_embed.proj")
  if mapping.model.variant.class_tokens:
    mapping.fuse(
      "cls_token",
      ["tokens"],
      0,
      split=lambda x: [x.reshape(-1)],
      join=image_encoders.join_with_leading_axes(2),
    )
  image_encoders.map_positions(mapping, "pos_embed", "inputs", mapping.model.inputs.position)
  for index in range(mapping.model.variant.dims.layers):
    hf_layer, attention, mlp = (
      f"blocks.{index}",
      *(f"encoder/blocks/{name}" for name in ("self_attention", "mlp")),
    )
    mapping.norm(f"{hf_layer}.norm1", f"{attention}/in_norm", index)
    fused_tensors.map_stacked(mapping, f"{hf_layer}.attn.qkv", f"{attention}/layer", index)
    mapping.linear(f"{hf_layer}.attn.proj", f"{attention}/layer/out", index)
    mapping.norm(f"{hf_layer}.norm2", f"{mlp}/in_norm", index)
    mapping.linear(f"{hf_layer}.mlp.fc1", f"{mlp}/layer/wi", index)
    mapping.linear(f"{hf_layer}.mlp.fc2", f"{mlp}/layer/wo", index)
    for number, path in enumerate((attention, mlp), 1):
      if f"{path}/res_norm/scale" in mapping.parameter_names:
        mapping.copy(f"{hf_layer}.ls{number}.gamma", f"{path}/res_norm/scale", index)
  after = "head/norm/scale" in mapping.parameter_names
  mapping.norm("fc_norm" if after else "norm", "head/norm" if after else "encoder/final_norm")
  if "head/out/kernel" in mapping.parameter_names:
    mapping.linear("head", "head/out")
