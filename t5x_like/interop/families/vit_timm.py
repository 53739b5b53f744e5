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
# (whether it classifies, timm's pooling) -> our head
_HEADS = {
  (True, "token"): {"name": "image_classification", "pooling": "token"},
  (True, "avg"): {"name": "image_classification", "pooling": "mean", "norm": "after"},
  (False, "token"): {"name": "image_features", "pooling": "token"},
  (False, "avg"): {"name": "image_features", "pooling": "mean", "pooler": "norm"},
}


def read_config(fields: Fields, tensor_names: set[str]):
  match = _NAME.fullmatch(fields.values["architecture"])
  if match is None:
    raise fields.refusal(
      "architecture", fields.values["architecture"], "a name like vit_base_patch16_224"
    )
  size, patch, resolution = match.groups()
  width, layers, heads = SIZES[size]
  arguments = timm.read_arguments(fields)
  arguments.require("reg_tokens", 0)
  arguments.require("no_embed_class", False)
  labels = timm.count_labels(fields)
  pooling = fields.values.get("global_pool") or "token"
  arguments.require("global_pool", pooling)
  is_classifier = labels > 0
  if (is_classifier, pooling) not in _HEADS:
    raise fields.refusal("global_pool", pooling, "'token' or 'avg'")
  head = dict(_HEADS[is_classifier, pooling])
  if is_classifier:
    head["labels"] = labels
  D = arguments.take("embed_dim", width)
  N = arguments.take("num_heads", heads)
  mlp = int(D * arguments.take("mlp_ratio", 4.0))
  biases = {True: ("qkv", "out", "mlp"), False: ("out", "mlp")}
  has_class_token = arguments.choose("class_token", {True: True, False: False}, True)
  resolution = timm.read_resolution(fields, int(resolution))
  variant = replace(
    vit.VARIANTS["vit-b16"],
    dims=Dims(D, N, N, D // N, mlp, arguments.take("depth", layers)),
    design=replace(
      vit.DESIGN,
      biases=arguments.choose("qkv_bias", biases, True),
      layer_scale=arguments.take("init_values", 0.0) or None,
    ),
    patch=image_encoders.read_side(arguments, "patch_size", int(patch)),
    resolution=image_encoders.read_resolution(arguments, "img_size", resolution),
    channels=arguments.take("in_chans", 3),
    class_tokens=1 if has_class_token else 0,
    head=head,
  )
  arguments.refuse_unused()
  return vit.Model, {"variant": variant}


def write_config(model, model_type: str | None) -> dict:
  variant = model.variant
  dims = model.variant.dims
  head = variant.head if isinstance(variant.head, dict) else {"name": variant.head}
  form = _find_form(head, variant.class_tokens)
  if form is None or variant.registers or variant.class_tokens > 1:
    raise UserError(
      f"the head {head}, {variant.class_tokens} class tokens and {variant.registers} registers: "
      "timm's vit has 'image_classification' or 'image_features', at most 1 and 0"
    )
  is_classifier, pooling = form
  fields = image_encoders.write_config(model, "timm's vit", layer_scale=variant.design.layer_scale)
  if (fields["layer_norm_eps"], fields["hidden_act"]) != (1e-6, "gelu"):
    raise UserError(
      f"design.norm_epsilon is {fields['layer_norm_eps']}, activation {fields['hidden_act']}: "
      "timm's vit has 1e-6 and gelu"
    )
  return timm.write_config(
    "vit_base_patch16_224",  # which `model_args` change
    "head",
    dims.embed,
    head.get("labels", 1000) if is_classifier else 0,
    pooling,
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


def _find_form(head: dict, class_tokens: int) -> tuple[bool, str] | None:
  """Return the key of `_HEADS` for a head, None if timm has no such head."""
  defaults = {"pooling": "token" if class_tokens else "mean", "hidden": False}
  if head["name"] == "image_classification":
    defaults["norm"] = "before"
  else:
    defaults["pooler"] = "none"
  complete = {key: head.get(key) or default for key, default in defaults.items()}
  complete["name"] = head["name"]
  if complete["hidden"]:
    return None
  for form, timm_head in _HEADS.items():
    if complete | timm_head == complete:
      return form
  return None


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
  attention = "encoder/blocks/self_attention"
  mlp = "encoder/blocks/mlp"
  for layer in range(mapping.model.variant.dims.layers):
    hf_layer = f"blocks.{layer}"
    mapping.norm(f"{hf_layer}.norm1", f"{attention}/in_norm", layer)
    fused_tensors.map_stacked(mapping, f"{hf_layer}.attn.qkv", f"{attention}/layer", layer)
    mapping.linear(f"{hf_layer}.attn.proj", f"{attention}/layer/out", layer)
    mapping.norm(f"{hf_layer}.norm2", f"{mlp}/in_norm", layer)
    mapping.linear(f"{hf_layer}.mlp.fc1", f"{mlp}/layer/wi", layer)
    mapping.linear(f"{hf_layer}.mlp.fc2", f"{mlp}/layer/wo", layer)
    if f"{attention}/res_norm/scale" in mapping.parameter_names:
      mapping.copy(f"{hf_layer}.ls1.gamma", f"{attention}/res_norm/scale", layer)
    if f"{mlp}/res_norm/scale" in mapping.parameter_names:
      mapping.copy(f"{hf_layer}.ls2.gamma", f"{mlp}/res_norm/scale", layer)
  if "head/norm/scale" in mapping.parameter_names:
    mapping.norm("fc_norm", "head/norm")
  else:
    mapping.norm("norm", "encoder/final_norm")
  if "head/out/kernel" in mapping.parameter_names:
    mapping.linear("head", "head/out")
