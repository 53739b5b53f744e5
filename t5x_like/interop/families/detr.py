"""DETR, as an object detector, with the library's own ResNet or timm's, whose tensors have other
names.

A file's names are kept when it is written again; a model that was not loaded is written with the
library's ResNet.
"""

import dataclasses
import json
from collections.abc import Callable

from t5x_like.architectures.detector import DetectorVariant
from t5x_like.architectures.positioned_attention import PositionEmbeddings
from t5x_like.errors import UserError
from t5x_like.interop import image_encoders, resnet
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.encoders import ACTIVATIONS, label_fields
from t5x_like.interop.hf import require_design
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import detr
from t5x_like.nn.cores.auto import EXACT_CORES
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("detr",)
MODELS = (detr.Model,)
BACKBONE = "model.backbone.conv_encoder.model."
HEADS = ("encoder_attention_heads", "decoder_attention_heads")
_DILATED = {"last_stage": "dilated"}
_WITHOUT_EFFECT = """
  dropout attention_dropout activation_dropout encoder_layerdrop decoder_layerdrop init_xavier_std
  auxiliary_loss class_cost bbox_cost giou_cost mask_loss_coefficient dice_loss_coefficient
  bbox_loss_coefficient giou_loss_coefficient eos_coefficient num_hidden_layers
  max_position_embeddings use_pretrained_backbone use_timm_backbone backbone_kwargs
"""


def canonical_name(name: str) -> str:
  """Translate a tensor's name from timm's to the library's; return other names unchanged."""
  rest = name.removeprefix(BACKBONE)
  return name if rest == name else BACKBONE + resnet.library_name(rest)


def file_naming(model) -> Callable[[str], str]:
  """Return the names in a file of a model: timm's for a model that came with them."""
  dilated = resnet.complete_backbone(model.variant.backbone, "detr")["last_stage"] == "dilated"
  return timm_name if dilated or _has_timm(model) else str


def timm_name(name: str) -> str:
  """Undo `canonical_name`."""
  rest = name.removeprefix(BACKBONE)
  return name if rest == name else BACKBONE + resnet.timm_name(rest)


def read_config(fields: Fields, tensor_names: set[str]):
  fields.require("architectures", ["DetrForObjectDetection"])
  fields.require("position_embedding_type", "sine")
  fields.require("scale_embedding", False)
  fields.ignore(*_WITHOUT_EFFECT.split())
  D, (N, decoder_heads) = fields.take("d_model", 256), (fields.take(name, 8) for name in HEADS)
  if decoder_heads != N:
    raise fields.refusal(HEADS[1], decoder_heads, f"{N}, as the encoder has")
  layers = fields.take("encoder_layers", 6)
  mlp = fields.take("encoder_ffn_dim", 2048)
  activation = fields.choose("activation_function", ACTIVATIONS, "relu")
  channels = fields.take("num_channels", 3)
  return detr.Model, {
    "variant": DetectorVariant(
      Dims(D, N, N, D // N, mlp, layers),
      dataclasses.replace(detr.DESIGN, activation=activation),
      {"name": "resnet"} | _backbone(fields, channels),
      decoder_layers=fields.take("decoder_layers", 6),
      decoder_mlp=fields.take("decoder_ffn_dim", 2048),
      queries=fields.take("num_queries", 100),
      labels=image_encoders.count_labels(fields),
      channels=channels,
    )
  }


def _backbone(fields: Fields, channels: int) -> dict:
  """Return the arguments of `architectures.backbones.resnet`."""
  own = fields.section("backbone_config")
  name = fields.take("backbone", "resnet50")
  dilated = fields.choose("dilation", {True: True, False: False}, False)
  own.require("num_channels", channels)
  kind = own.values.get("model_type") or "timm_backbone"
  if kind == "resnet":
    found = resnet.read_backbone(own)
    last = f"stage{len(found['depths'])}"
    features = own.take("out_features", None) or [last]
    if features[-1] != last:
      raise own.refusal("out_features", features, f"{last} last")
    if dilated:
      raise fields.refusal("dilation", True, "False with the library's own ResNet")
  elif kind == "timm_backbone":
    name = own.take("backbone", name)
    own.require("output_stride", 32, 16, None)
    if name.partition(".")[0] not in resnet.TIMM_BACKBONES:
      raise fields.refusal("backbone", name, " or ".join(resnet.TIMM_BACKBONES))
    found = resnet.TIMM_BACKBONES[name.partition(".")[0]]
    dilated = dilated or own.values.get("output_stride") == 16
  else:
    raise own.refusal("model_type", kind, "'resnet' or 'timm_backbone'")
  return found | ({"last_stage": "dilated"} if dilated else {})


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
  if spec["last_stage"] == "strided":
    backbone = {"backbone_config": resnet.write_backbone(spec, variant.channels)}
    backbone["backbone_config"]["out_features"] = [f"stage{len(spec['depths'])}"]
  else:
    name = next(
      (
        name
        for name, one in resnet.TIMM_BACKBONES.items()
        if spec == spec | resnet.DEFAULTS | one | _DILATED
      ),
      None,
    )
    if name is None:
      raise UserError(
        f"the backbone {spec}: detr's dilated ones are {' or '.join(resnet.TIMM_BACKBONES)} of timm"
      )
    backbone = {
      "use_timm_backbone": True,
      "use_pretrained_backbone": False,
      "backbone": name,
      "dilation": True,
    }
  activation = find_key(ACTIVATIONS, design.activation)
  return {
    "architectures": ["DetrForObjectDetection"],
    "model_type": "detr",
    **backbone,
    "d_model": dims.embed,
    "encoder_layers": dims.layers,
    "decoder_layers": variant.decoder_dims.layers,
    "encoder_ffn_dim": dims.mlp,
    "decoder_ffn_dim": variant.decoder_dims.mlp,
    **dict.fromkeys(HEADS, dims.heads),
    "activation_function": activation,
    "num_queries": variant.queries,
    "num_channels": variant.channels,
    "position_embedding_type": "sine",
  } | label_fields(variant.labels)


def map_tensors(mapping: TensorMapping) -> None:
  resnet.map_tensors(mapping, BACKBONE)
  mapping.fuse(
    "model.input_projection.weight",
    ["project/kernel"],
    split=lambda x: [x.reshape(x.shape[:2]).T],
    join=lambda xs: xs[0].T[..., None, None],
  )
  mapping.copy("model.input_projection.bias", "project/bias")
  mapping.copy("model.query_position_embeddings.weight", "queries")
  parts = ("q_proj", "k_proj", "v_proj", "out_proj")
  for side, stack in (("encoder", mapping.model.encoder), ("decoder", mapping.model.decoder)):
    for index in range(stack.repeats):
      layer = f"model.{side}.layers.{index}"
      blocks = f"{side}/blocks"
      for name, own in (("self_attn", "self_attention"), ("encoder_attn", "cross_attention"))[
        : 1 + (side == "decoder")
      ]:
        mapping.attention(f"{layer}.{name}", f"{blocks}/{own}/layer", index, names=parts)
        mapping.norm(f"{layer}.{name}_layer_norm", f"{blocks}/{own}/out_norm", index)
      mapping.linear(f"{layer}.fc1", f"{blocks}/mlp/layer/wi", index)
      mapping.linear(f"{layer}.fc2", f"{blocks}/mlp/layer/wo", index)
      mapping.norm(f"{layer}.final_layer_norm", f"{blocks}/mlp/out_norm", index)
  mapping.norm("model.decoder.layernorm", "decoder_norm")
  mapping.linear("class_labels_classifier", "classes")
  for number in range(len(mapping.model.boxes)):
    mapping.linear(f"bbox_predictor.layers.{number}", f"boxes/{number}")


def _has_timm(model) -> bool:
  """Return whether a model comes from a file with timm's ResNet, and still matches its config."""
  origin = getattr(model, "origin", None)
  values = json.loads(origin.config) if origin else {}
  if values.get("model_type") != "detr":
    return False
  kind = (values.get("backbone_config") or {}).get("model_type", "timm_backbone")
  return (
    kind == "timm_backbone"
    and read_config(Fields(values, origin.path), set())[1]["variant"] == model.variant
  )
