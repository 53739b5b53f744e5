"""ConvNeXt, as an image classifier or without a head."""

from dataclasses import replace

from t5x_like.errors import UserError
from t5x_like.interop import image_encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.encoders import ACTIVATIONS
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import convnext

MODEL_TYPES = ("convnext",)
MODELS = (convnext.Model,)
CLASSES = ("ConvNextForImageClassification", "ConvNextModel")
_WITHOUT_EFFECT = (
  "drop_path_rate num_stages out_features out_indices stage_names _out_features _out_indices"
)


def build(fields: Fields, names: set[str]):
  head = image_encoders.head(fields, *CLASSES, "norm")
  head |= {"norm": "after"} if head["name"] == "image_classification" else {}
  fields.ignore(*_WITHOUT_EFFECT.split())
  widths = tuple(fields.take("hidden_sizes", [96, 192, 384, 768]))
  backbone = {
    "name": "convnext",
    "patch": image_encoders.side(fields, "patch_size", 4),
    "widths": widths,
    "depths": tuple(fields.take("depths", [3, 3, 9, 3])),
    "activation": fields.choose("hidden_act", ACTIVATIONS, "gelu"),
    "layer_scale": float(fields.take("layer_scale_init_value", 1e-6)),
  }
  base = convnext.VARIANTS["convnext-t"]
  return convnext.Model, {
    "variant": replace(
      base,
      backbone=backbone,
      width=widths[-1],
      design=replace(base.design, norm_epsilon=fields.take("layer_norm_eps", 1e-12)),
      resolution=image_encoders.resolution(fields, "image_size", 224),
      channels=fields.take("num_channels", 3),
      head=head,
    )
  }


def config(model, model_type: str | None) -> dict:
  variant = model.variant
  fields = image_encoders.head_fields(model, "convnext", *CLASSES, poolers=("norm",), norm="after")
  spec = variant.backbone if isinstance(variant.backbone, dict) else {"name": variant.backbone}
  if spec["name"] != "convnext":
    raise UserError(f"the backbone {spec}: the model type convnext has 'convnext'")
  activation = spec.get("activation", "gelu")
  return fields | {
    "model_type": "convnext",
    "patch_size": spec.get("patch", 4),
    "hidden_sizes": list(spec.get("widths", (96, 192, 384, 768))),
    "depths": list(spec.get("depths", (3, 3, 9, 3))),
    "num_stages": len(model.backbone.stages),
    "hidden_act": next(theirs for theirs, ours in ACTIVATIONS.items() if ours == activation),
    "layer_scale_init_value": spec.get("layer_scale", 1e-6),
    "layer_norm_eps": variant.design.norm_epsilon,
    "image_size": variant.resolution,
    "num_channels": variant.channels,
  }


def tensors(m: TensorMapping) -> None:
  classifies = "head/out/kernel" in m.names
  body = "convnext." if classifies else ""
  _convolution(
    m, f"{body}embeddings.patch_embeddings", "backbone/patches", m.model.backbone.patches.side
  )
  m.norm(f"{body}embeddings.layernorm", "backbone/norm")
  for stage, blocks in enumerate(m.model.backbone.stages):
    theirs = f"{body}encoder.stages.{stage}"
    if stage:
      m.norm(f"{theirs}.downsampling_layer.0", f"backbone/merge_norms/{stage - 1}")
      _convolution(m, f"{theirs}.downsampling_layer.1", f"backbone/merges/{stage - 1}", 2)
    for at in range(len(blocks)):
      layer = f"{theirs}.layers.{at}"
      block = f"backbone/stages/{stage}/{at}"
      m.fused(
        f"{layer}.dwconv.weight",
        [f"{block}/depthwise/kernel"],
        split=lambda x: [x.transpose(2, 3, 1, 0)],
        join=lambda xs: xs[0].transpose(3, 2, 0, 1),
      )
      m.copy(f"{layer}.dwconv.bias", f"{block}/depthwise/bias")
      m.norm(f"{layer}.layernorm", f"{block}/norm")
      m.linear(f"{layer}.pwconv1", f"{block}/wi")
      m.linear(f"{layer}.pwconv2", f"{block}/wo")
      if f"{block}/scale/scale" in m.names:
        m.copy(f"{layer}.layer_scale_parameter", f"{block}/scale/scale")
  if "head/norm/scale" in m.names:
    m.norm(f"{body}layernorm", "head/norm")
  if classifies:
    m.linear("classifier", "head/out")


def _convolution(m: TensorMapping, theirs: str, ours: str, side: int) -> None:
  """Map a convolution of separate squares, which is a linear layer here."""
  m.fused(
    f"{theirs}.weight",
    [f"{ours}/kernel"],
    split=lambda x: [x.transpose(2, 3, 1, 0).reshape(-1, x.shape[0])],
    join=lambda xs: xs[0].reshape(side, side, -1, xs[0].shape[-1]).transpose(3, 2, 0, 1),
  )
  m.copy(f"{theirs}.bias", f"{ours}/bias")
