"""DETR, as an object detector, with the library's own ResNet or timm's, whose tensors have other
names.

A file's names are kept when it is written again; a model that was not loaded is written with the
library's ResNet.
"""

import dataclasses
import json
from collections.abc import Callable

from t5x_like.contrib.detection.detector import DetectorVariant
from t5x_like.contrib.detection.models import detr
from t5x_like.contrib.detection.positioned_attention import PositionEmbeddings
from t5x_like.errors import UserError
from t5x_like.interop import image_encoders, resnet
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.encoders import ACTIVATIONS, label_fields
from t5x_like.interop.hf import require_design
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.nn.cores.auto import EXACT_CORES
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("detr",)
MODELS = (detr.Model,)
BACKBONE = "model.backbone.conv_encoder.model."
ATTENTION_NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")
_DILATED = {"last_stage": "dilated"}
_WITHOUT_EFFECT = """
  dropout attention_dropout activation_dropout encoder_layerdrop decoder_layerdrop init_xavier_std
  auxiliary_loss class_cost bbox_cost giou_cost mask_loss_coefficient dice_loss_coefficient
  bbox_loss_coefficient giou_loss_coefficient eos_coefficient num_hidden_layers
  max_position_embeddings use_pretrained_backbone use_timm_backbone backbone_kwargs
"""


def canonical_name(name: str) -> str:
  """Translate a tensor's name from timm's to the library's; return other names unchanged."""
  if not name.startswith(BACKBONE):
    return name
  return BACKBONE + resnet.library_name(name.removeprefix(BACKBONE))


def file_naming(model) -> Callable[[str], str]:
  """Return a function that names the tensors in a file: timm's names for a model that has them."""
  dilated = resnet.complete_backbone(model.variant.backbone, "detr")["last_stage"] == "dilated"
  return timm_name if dilated or _has_timm(model) else str


def timm_name(name: str) -> str:
  """Translate a tensor's name from the library's to timm's; return other names unchanged."""
  if not name.startswith(BACKBONE):
    return name
  return BACKBONE + resnet.timm_name(name.removeprefix(BACKBONE))


def read_config(fields: Fields, tensor_names: set[str]):
  fields.require("architectures", ["DetrForObjectDetection"])
  fields.require("position_embedding_type", "sine")
  fields.require("scale_embedding", False)
  fields.ignore(*_WITHOUT_EFFECT.split())
  D = fields.take("d_model", 256)
  N = fields.take("encoder_attention_heads", 8)
  decoder_heads = fields.take("decoder_attention_heads", 8)
  if decoder_heads != N:
    raise fields.refusal("decoder_attention_heads", decoder_heads, f"{N}, as the encoder has")
  layers = fields.take("encoder_layers", 6)
  mlp = fields.take("encoder_ffn_dim", 2048)
  activation = fields.choose("activation_function", ACTIVATIONS, "relu")
  channels = fields.take("num_channels", 3)
  return detr.Model, {
    "variant": DetectorVariant(
      Dims(D, N, N, D // N, mlp, layers),
      dataclasses.replace(detr.DESIGN, activation=activation),
      {"name": "resnet"} | _read_backbone(fields, channels),
      decoder_layers=fields.take("decoder_layers", 6),
      decoder_mlp=fields.take("decoder_ffn_dim", 2048),
      queries=fields.take("num_queries", 100),
      labels=image_encoders.count_labels(fields),
      channels=channels,
    )
  }


def _read_backbone(fields: Fields, channels: int) -> dict:
  """Return the arguments of `architectures.backbones.resnet`."""
  section = fields.section("backbone_config")
  name = fields.take("backbone", "resnet50")
  is_dilated = fields.choose("dilation", {True: True, False: False}, False)
  section.require("num_channels", channels)
  model_type = section.values.get("model_type") or "timm_backbone"
  if model_type == "resnet":
    backbone = resnet.read_backbone(section)
    last_stage = f"stage{len(backbone['depths'])}"
    features = section.take("out_features", None) or [last_stage]
    if features[-1] != last_stage:
      raise section.refusal("out_features", features, f"{last_stage} last")
    if is_dilated:
      raise fields.refusal("dilation", True, "False with the library's own ResNet")
    return backbone
  if model_type != "timm_backbone":
    raise section.refusal("model_type", model_type, "'resnet' or 'timm_backbone'")
  name = section.take("backbone", name)
  section.require("output_stride", 32, 16, None)
  architecture = name.partition(".")[0]
  if architecture not in resnet.TIMM_BACKBONES:
    raise fields.refusal("backbone", name, " or ".join(resnet.TIMM_BACKBONES))
  backbone = resnet.TIMM_BACKBONES[architecture]
  if is_dilated or section.values.get("output_stride") == 16:
    backbone = backbone | _DILATED
  return backbone


def write_config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  dims = model.variant.dims
  require_design(
    model,
    norm="layernorm",
    norm_epsilon=1e-5,
    norm_position="post",
    parallel="no",
    biases=("qkv", "out", "mlp"),
    qk_norm=False,
    attention_scale=None,
    softcap=None,
    windows=(None,),
    experts=None,
    activation=list(ACTIVATIONS.values()),
    core=[*EXACT_CORES],
  )
  spec = resnet.complete_backbone(variant.backbone, "detr")
  if variant.places != PositionEmbeddings():
    raise UserError(f"{variant.places}: detr has {PositionEmbeddings()}")
  if dims.kv_heads != dims.heads or dims.head_dim * dims.heads != dims.embed:
    raise UserError(
      f"{dims}: detr has as many key/value heads as heads, and heads that share the width"
    )
  backbone_fields = _write_backbone(spec, variant.channels)
  return {
    "architectures": ["DetrForObjectDetection"],
    "model_type": "detr",
    **backbone_fields,
    "d_model": dims.embed,
    "encoder_layers": dims.layers,
    "decoder_layers": variant.decoder_dims.layers,
    "encoder_ffn_dim": dims.mlp,
    "decoder_ffn_dim": variant.decoder_dims.mlp,
    "encoder_attention_heads": dims.heads,
    "decoder_attention_heads": dims.heads,
    "activation_function": find_key(ACTIVATIONS, design.activation),
    "num_queries": variant.queries,
    "num_channels": variant.channels,
    "position_embedding_type": "sine",
  } | label_fields(variant.labels)


def _write_backbone(backbone: dict, channels: int) -> dict:
  """Return the fields of a backbone: the library's own ResNet, or timm's if it is dilated."""
  if backbone["last_stage"] == "strided":
    section = resnet.write_backbone(backbone, channels)
    section["out_features"] = [f"stage{len(backbone['depths'])}"]
    return {"backbone_config": section}
  for name, arguments in resnet.TIMM_BACKBONES.items():
    if backbone == backbone | resnet.DEFAULTS | arguments | _DILATED:
      return {
        "use_timm_backbone": True,
        "use_pretrained_backbone": False,
        "backbone": name,
        "dilation": True,
      }
  raise UserError(
    f"the backbone {backbone}: detr's dilated ones are {' or '.join(resnet.TIMM_BACKBONES)} of timm"
  )


def map_tensors(mapping: TensorMapping) -> None:
  resnet.map_tensors(mapping, BACKBONE)
  mapping.fuse(
    "model.input_projection.weight",
    ["project/kernel"],
    split=lambda x: [x.reshape(x.shape[:2]).T],
    join=lambda arrays: arrays[0].T[..., None, None],
  )
  mapping.copy("model.input_projection.bias", "project/bias")
  mapping.copy("model.query_position_embeddings.weight", "queries")
  for layer in range(mapping.model.encoder.repeats):
    _map_layer(mapping, "encoder", layer, {"self_attn": "self_attention"})
  for layer in range(mapping.model.decoder.repeats):
    attention_names = {"self_attn": "self_attention", "encoder_attn": "cross_attention"}
    _map_layer(mapping, "decoder", layer, attention_names)
  mapping.norm("model.decoder.layernorm", "decoder_norm")
  mapping.linear("class_labels_classifier", "classes")
  for number in range(len(mapping.model.boxes)):
    mapping.linear(f"bbox_predictor.layers.{number}", f"boxes/{number}")


def _map_layer(
  mapping: TensorMapping, side: str, layer: int, attention_names: dict[str, str]
) -> None:
  """Map one layer of a stack.

  Args:
    side: "encoder" or "decoder".
    attention_names: the library's name of each kind of attention -> our name.
  """
  hf_layer = f"model.{side}.layers.{layer}"
  blocks = f"{side}/blocks"
  for hf_name, name in attention_names.items():
    mapping.attention(
      f"{hf_layer}.{hf_name}", f"{blocks}/{name}/layer", layer, names=ATTENTION_NAMES
    )
    mapping.norm(f"{hf_layer}.{hf_name}_layer_norm", f"{blocks}/{name}/out_norm", layer)
  mapping.linear(f"{hf_layer}.fc1", f"{blocks}/mlp/layer/wi", layer)
  mapping.linear(f"{hf_layer}.fc2", f"{blocks}/mlp/layer/wo", layer)
  mapping.norm(f"{hf_layer}.final_layer_norm", f"{blocks}/mlp/out_norm", layer)


def _has_timm(model) -> bool:
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
  _, arguments = read_config(Fields(values, origin.path), set())
  return arguments["variant"] == model.variant
