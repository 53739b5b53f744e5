"""ConvNeXt, as an image classifier or without a head."""

from dataclasses import replace

from t5x_like.errors import UserError
from t5x_like.interop import image_encoders
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.encoders import ACTIVATIONS
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import convnext

MODEL_TYPES = ("convnext",)
MODELS = (convnext.Model,)
CLASSES = ("ConvNextForImageClassification", "ConvNextModel")
_WITHOUT_EFFECT = (
  "drop_path_rate num_stages out_features out_indices stage_names _out_features _out_indices"
)


def read_config(fields: Fields, tensor_names: set[str]):
  head = image_encoders.read_head(fields, *CLASSES, "norm")
  if head["name"] == "image_classification":
    head["norm"] = "after"
  fields.ignore(*_WITHOUT_EFFECT.split())
  widths = tuple(fields.take("hidden_sizes", [96, 192, 384, 768]))
  backbone = {
    "name": "convnext",
    "patch": image_encoders.read_side(fields, "patch_size", 4),
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
      resolution=image_encoders.read_resolution(fields, "image_size", 224),
      channels=fields.take("num_channels", 3),
      head=head,
    )
  }


def write_config(model, model_type: str | None) -> dict:
  variant = model.variant
  fields = image_encoders.write_head(model, "convnext", *CLASSES, poolers=("norm",), norm="after")
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
    "hidden_act": find_key(ACTIVATIONS, activation),
    "layer_scale_init_value": spec.get("layer_scale", 1e-6),
    "layer_norm_eps": variant.design.norm_epsilon,
    "image_size": variant.resolution,
    "num_channels": variant.channels,
  }


def map_tensors(mapping: TensorMapping) -> None:
  classifies = "head/out/kernel" in mapping.parameter_names
  body = "convnext." if classifies else ""
  _map_convolution(
    mapping,
    f"{body}embeddings.patch_embeddings",
    "backbone/patches",
    mapping.model.backbone.patches.side,
  )
  mapping.norm(f"{body}embeddings.layernorm", "backbone/norm")
  for stage, blocks in enumerate(mapping.model.backbone.stages):
    hf_stage = f"{body}encoder.stages.{stage}"
    if stage:
      mapping.norm(f"{hf_stage}.downsampling_layer.0", f"backbone/merge_norms/{stage - 1}")
      _map_convolution(
        mapping, f"{hf_stage}.downsampling_layer.1", f"backbone/merges/{stage - 1}", 2
      )
    for number in range(len(blocks)):
      hf_layer = f"{hf_stage}.layers.{number}"
      block = f"backbone/stages/{stage}/{number}"
      mapping.fuse(
        f"{hf_layer}.dwconv.weight",
        [f"{block}/depthwise/kernel"],
        split=lambda x: [x.transpose(2, 3, 1, 0)],
        join=lambda xs: xs[0].transpose(3, 2, 0, 1),
      )
      mapping.copy(f"{hf_layer}.dwconv.bias", f"{block}/depthwise/bias")
      mapping.norm(f"{hf_layer}.layernorm", f"{block}/norm")
      mapping.linear(f"{hf_layer}.pwconv1", f"{block}/wi")
      mapping.linear(f"{hf_layer}.pwconv2", f"{block}/wo")
      if f"{block}/scale/scale" in mapping.parameter_names:
        mapping.copy(f"{hf_layer}.layer_scale_parameter", f"{block}/scale/scale")
  if "head/norm/scale" in mapping.parameter_names:
    mapping.norm(f"{body}layernorm", "head/norm")
  if classifies:
    mapping.linear("classifier", "head/out")


def _map_convolution(mapping: TensorMapping, hf_name: str, path: str, side: int) -> None:
  """Map a convolution of separate squares, which is a linear layer here."""
  mapping.fuse(
    f"{hf_name}.weight",
    [f"{path}/kernel"],
    split=lambda x: [x.transpose(2, 3, 1, 0).reshape(-1, x.shape[0])],
    join=lambda xs: xs[0].reshape(side, side, -1, xs[0].shape[-1]).transpose(3, 2, 0, 1),
  )
  mapping.copy(f"{hf_name}.bias", f"{path}/bias")
