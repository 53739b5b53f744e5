"""DETR, as an object detector, with the library's own ResNet or timm's, whose tensors have other names.

A file's names are kept when it is written again; a model that was not loaded is written with the library's ResNet.
"""

import dataclasses
import json
import re
from collections.abc import Callable

from t5x_like.architectures.detector import DetectorVariant
from t5x_like.architectures.placed import Places
from t5x_like.errors import UserError
from t5x_like.interop import images
from t5x_like.interop.encoders import ACTIVATIONS
from t5x_like.interop.fields import Fields
from t5x_like.interop.hf import only
from t5x_like.interop.mapping import Mapping
from t5x_like.models import detr
from t5x_like.nn.cores.auto import EXACT
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("detr",)
MODELS = (detr.Model,)
BACKBONE = "model.backbone.conv_encoder.model."
HEADS = ("encoder_attention_heads", "decoder_attention_heads")
_NORM = {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "variance"}
_BASIC = {"block": "basic", "widths": (64, 128, 256, 512)}
_TIMM = {  # names there -> arguments of `architectures.backbones.resnet`
  "resnet18": _BASIC | {"depths": (2, 2, 2, 2)},
  "resnet34": _BASIC | {"depths": (3, 4, 6, 3)},
  "resnet50": {},
  "resnet101": {"depths": (3, 4, 23, 3)},
  "resnet152": {"depths": (3, 8, 36, 3)},
}
_WITHOUT_EFFECT = """
  dropout attention_dropout activation_dropout encoder_layerdrop decoder_layerdrop init_xavier_std auxiliary_loss
  class_cost bbox_cost giou_cost mask_loss_coefficient dice_loss_coefficient bbox_loss_coefficient
  giou_loss_coefficient eos_coefficient num_hidden_layers max_position_embeddings use_pretrained_backbone
  use_timm_backbone backbone_kwargs
"""
_UNIT = re.compile(
  r"encoder\.stages\.(\d+)\.layers\.(\d+)\.(?:layer\.(\d+)|shortcut)\.(convolution|normalization)\.(\w+)"
)
_TIMM_UNIT = re.compile(r"layer(\d+)\.(\d+)\.(?:(conv|bn)(\d+)|downsample\.([01]))\.(\w+)")
_STEM = {"conv1.": "embedder.embedder.convolution.", "bn1.": "embedder.embedder.normalization."}


def renamed(name: str) -> str:
  """Translate a tensor's name from timm's to the library's; return other names unchanged."""
  rest = name.removeprefix(BACKBONE)
  for theirs, ours in _STEM.items():
    if rest != name and rest.startswith(theirs):
      return BACKBONE + ours + rest.removeprefix(theirs)
  if rest == name or not (found := _TIMM_UNIT.fullmatch(rest)):
    return name
  stage, block, kind, number, shortcut, array = found.groups()
  unit = f"layer.{int(number) - 1}" if number else "shortcut"
  kind = "convolution" if "conv" == kind or shortcut == "0" else "normalization"
  return f"{BACKBONE}encoder.stages.{int(stage) - 1}.layers.{block}.{unit}.{kind}.{array}"


def written(model) -> Callable[[str], str]:
  """Return the names in a file of a model: timm's for a model that came with them."""
  return of_timm if _has_timm(model) else str


def of_timm(name: str) -> str:
  """Undo `renamed`."""
  rest = name.removeprefix(BACKBONE)
  for theirs, ours in _STEM.items():
    if rest.startswith(ours):
      return BACKBONE + theirs + rest.removeprefix(ours)
  if not (found := _UNIT.fullmatch(rest)):
    return name
  stage, block, number, kind, array = found.groups()
  convolution = kind == "convolution"
  unit = f"{'conv' if convolution else 'bn'}{int(number) + 1}" if number else f"downsample.{int(not convolution)}"
  return f"{BACKBONE}layer{int(stage) + 1}.{block}.{unit}.{array}"


def build(fields: Fields, names: set[str]):
  fields.only("architectures", ["DetrForObjectDetection"])
  fields.only("position_embedding_type", "sine")
  fields.only("dilation", False)
  fields.only("scale_embedding", False)
  fields.ignore(*_WITHOUT_EFFECT.split())
  D, (N, decoder_heads) = fields.take("d_model", 256), (fields.take(name, 8) for name in HEADS)
  if decoder_heads != N:
    raise fields.refusal(HEADS[1], decoder_heads, f"{N}, as the encoder has")
  layers, mlp = fields.take("encoder_layers", 6), fields.take("encoder_ffn_dim", 2048)
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
      labels=images.labels_of(fields),
      channels=channels,
    )
  }


def _backbone(fields: Fields, channels: int) -> dict:
  """Return the arguments of `architectures.backbones.resnet`."""
  own, name = fields.section("backbone_config"), fields.take("backbone", "resnet50")
  given = own.values
  own.only("num_channels", channels)
  kind = given.get("model_type") or "timm_backbone"
  if kind == "resnet":
    own.only("hidden_act", "relu")
    own.only("downsample_in_first_stage", False)
    own.only("downsample_in_bottleneck", False)
    sizes, depths = own.take("hidden_sizes", [256, 512, 1024, 2048]), own.take("depths", [3, 4, 6, 3])
    block = own.choose("layer_type", {"bottleneck": "bottleneck", "basic": "basic"}, "bottleneck")
    last = f"stage{len(depths)}"
    features = own.take("out_features", None) or [last]
    if features[-1] != last:
      raise own.refusal("out_features", features, f"{last} last")
    found = {"stem": own.take("embedding_size", 64), "widths": tuple(sizes), "depths": tuple(depths), "block": block}
  elif kind == "timm_backbone":
    name = own.take("backbone", name)
    own.only("output_stride", 32, None)
    if name.partition(".")[0] not in _TIMM:
      raise fields.refusal("backbone", name, " or ".join(_TIMM))
    found = _TIMM[name.partition(".")[0]]
  else:
    raise own.refusal("model_type", kind, "'resnet' or 'timm_backbone'")
  return found


def config(model, model_type: str | None) -> dict:
  variant, design, dims = model.variant, model.variant.design, model.variant.dims
  only(
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
    core=[*EXACT],
  )
  spec = variant.backbone if isinstance(variant.backbone, dict) else {"name": variant.backbone}
  if spec["name"] != "resnet" or spec.get("norm", "frozen_batch") != "frozen_batch":
    raise UserError(f"the backbone {spec}: detr has 'resnet' with norm 'frozen_batch'")
  if variant.places != Places():
    raise UserError(f"{variant.places}: detr has {Places()}")
  if dims.kv_heads != dims.heads or dims.head_dim * dims.heads != dims.embed:
    raise UserError(f"{dims}: detr has as many key/value heads as heads, and heads that share the width")
  depths = list(spec.get("depths", (3, 4, 6, 3)))
  backbone = {
    "model_type": "resnet",
    "embedding_size": spec.get("stem", 64),
    "hidden_sizes": list(spec.get("widths", (256, 512, 1024, 2048))),
    "depths": depths,
    "layer_type": spec.get("block", "bottleneck"),
    "num_channels": variant.channels,
    "out_features": [f"stage{len(depths)}"],
  }
  activation = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == design.activation)
  return {
    "architectures": ["DetrForObjectDetection"],
    "model_type": "detr",
    "backbone_config": backbone,
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
  } | images.label_fields(variant.labels)


def tensors(m: Mapping) -> None:
  m.ignored = ("num_batches_tracked",)
  _unit(m, "embedder.embedder", "stem")
  for stage, blocks in enumerate(m.model.backbone.stages):
    for at, block in enumerate(blocks):
      theirs = f"encoder.stages.{stage}.layers.{at}"
      for number in range(len(block.units)):
        _unit(m, f"{theirs}.layer.{number}", f"stages/{stage}/{at}/units/{number}")
      if block.shortcut is not None:
        _unit(m, f"{theirs}.shortcut", f"stages/{stage}/{at}/shortcut")
  m.fused(
    "model.input_projection.weight",
    ["project/kernel"],
    split=lambda x: [x.reshape(x.shape[:2]).T],
    join=lambda xs: xs[0].T[..., None, None],
  )
  m.copy("model.input_projection.bias", "project/bias")
  m.copy("model.query_position_embeddings.weight", "queries")
  parts = ("q_proj", "k_proj", "v_proj", "out_proj")
  for side, stack in (("encoder", m.model.encoder), ("decoder", m.model.decoder)):
    for at in range(stack.repeats):
      layer, blocks = f"model.{side}.layers.{at}", f"{side}/blocks"
      for name, own in (("self_attn", "self_attention"), ("encoder_attn", "cross_attention"))[
        : 1 + (side == "decoder")
      ]:
        m.attention(f"{layer}.{name}", f"{blocks}/{own}/layer", at, names=parts)
        m.norm(f"{layer}.{name}_layer_norm", f"{blocks}/{own}/out_norm", at)
      m.linear(f"{layer}.fc1", f"{blocks}/mlp/layer/wi", at)
      m.linear(f"{layer}.fc2", f"{blocks}/mlp/layer/wo", at)
      m.norm(f"{layer}.final_layer_norm", f"{blocks}/mlp/out_norm", at)
  m.norm("model.decoder.layernorm", "decoder_norm")
  m.linear("class_labels_classifier", "classes")
  for number in range(len(m.model.boxes)):
    m.linear(f"bbox_predictor.layers.{number}", f"boxes/{number}")


def _unit(m: Mapping, theirs: str, ours: str) -> None:
  """Map a convolution and its norm."""
  m.fused(
    f"{BACKBONE}{theirs}.convolution.weight",
    [f"backbone/{ours}/conv/kernel"],
    split=lambda x: [x.transpose(2, 3, 1, 0)],
    join=lambda xs: xs[0].transpose(3, 2, 0, 1),
  )
  for array, name in _NORM.items():
    m.copy(f"{BACKBONE}{theirs}.normalization.{array}", f"backbone/{ours}/norm/{name}")


def _has_timm(model) -> bool:
  """Return whether a model comes from a file with timm's ResNet, and still matches its config."""
  origin = getattr(model, "origin", None)
  values = json.loads(origin.config) if origin else {}
  if values.get("model_type") != "detr":
    return False
  kind = (values.get("backbone_config") or {}).get("model_type", "timm_backbone")
  return kind == "timm_backbone" and build(Fields(values, origin.path), set())[1]["variant"] == model.variant
