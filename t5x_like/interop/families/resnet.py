"""ResNet with frozen batch norm, as an image classifier or without a head, under the library's
names or timm's."""

import json
from collections.abc import Callable
from dataclasses import replace

from t5x_like.errors import UserError
from t5x_like.interop import image_encoders, resnet, timm
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.hf import model_type_of
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import resnet as models
from t5x_like.resolution import height_and_width

LIBRARY = "resnet"
TIMM = "timm/resnet"
MODEL_TYPES = (LIBRARY, TIMM)
MODELS = (models.Model,)
BODY = "resnet."
CLASSIFIER = "classifier.1."
_STRIDES = {32: "strided", 16: "dilated"}


def canonical_name(name: str) -> str:
  """Return the library's name of a tensor behind a classifier."""
  if name.startswith("fc."):
    return CLASSIFIER + name.removeprefix("fc.")
  name = resnet.library_name(name)
  return BODY + name if name.startswith(("embedder.", "encoder.")) else name


def file_naming(model) -> Callable[[str], str]:
  """Return a function that names the tensors in a file.

  The names are timm's for a model that came with them, or that the library cannot express.
  """
  spec = resnet.complete_backbone(model.variant.backbone, LIBRARY)
  if _is_timm(model) or spec["last_stage"] == "dilated":
    return lambda name: resnet.timm_name(name.removeprefix(BODY)).replace(CLASSIFIER, "fc.")
  return str if hasattr(model.head, "out") else lambda name: name.removeprefix(BODY)


def _is_timm(model) -> bool:
  origin = getattr(model, "origin", None)
  return origin is not None and model_type_of(json.loads(origin.config)) == TIMM


def read_config(fields: Fields, tensor_names: set[str]):
  base = models.VARIANTS["resnet-50"]
  if model_type_of(fields.values) == TIMM:
    return models.Model, {"variant": _read_timm_config(fields, base)}
  head = image_encoders.read_head(fields, "ResNetForImageClassification", "ResNetModel")
  fields.ignore("out_features", "out_indices", "stage_names", "_out_features", "_out_indices")
  backbone = {"name": "resnet"} | resnet.read_backbone(fields)
  # a field of ours: the library takes any resolution
  channels = fields.take("num_channels", 3)
  side = image_encoders.read_resolution(fields, "image_size", 224)
  width = backbone["widths"][-1]
  return models.Model, {
    "variant": replace(
      base, backbone=backbone, width=width, resolution=side, channels=channels, head=head
    )
  }


def _read_timm_config(fields: Fields, base):
  name = fields.values["architecture"]
  arguments = timm.read_arguments(fields)
  if name not in resnet.TIMM_BACKBONES:
    raise fields.refusal("architecture", name, " or ".join(resnet.TIMM_BACKBONES))
  spec = resnet.DEFAULTS | resnet.TIMM_BACKBONES[name]
  expansion = 4 if spec["block"] == "bottleneck" else 1
  planes = arguments.take("channels", None)
  strides = arguments.take("output_stride", 32)
  if planes:
    spec["widths"] = tuple(expansion * width for width in planes)
  if strides not in _STRIDES:
    raise fields.refusal("output_stride", strides, " or ".join(map(str, _STRIDES)))
  arguments.require("global_pool", "avg")
  labels = timm.count_labels(fields)
  spec |= {
    "name": "resnet",
    "depths": tuple(arguments.take("layers", spec["depths"])),
    "last_stage": _STRIDES[strides],
  }
  head = {"name": "image_features"}
  if labels:
    head = {"name": "image_classification", "labels": labels}
  side = timm.read_resolution(fields, 224)
  channels = arguments.take("in_chans", 3)
  arguments.refuse_unused()
  return replace(
    base, backbone=spec, width=spec["widths"][-1], resolution=side, channels=channels, head=head
  )


def write_config(model, model_type: str | None) -> dict:
  variant = model.variant
  spec = resnet.complete_backbone(variant.backbone, LIBRARY)
  fields = image_encoders.write_head(model, LIBRARY, "ResNetForImageClassification", "ResNetModel")
  if not _is_timm(model) and spec["last_stage"] == "strided":
    return (
      fields | resnet.write_backbone(spec, variant.channels) | {"image_size": variant.resolution}
    )
  if spec["stem"] != 64 or len(spec["depths"]) != 4:
    raise UserError(
      f"the backbone has a stem of {spec['stem']} channels and {len(spec['depths'])} stages; "
      "timm's resnet has 64 and 4"
    )
  labels = len(fields.get("id2label", ()))
  expansion = 4 if spec["block"] == "bottleneck" else 1
  return timm.write_config(
    "resnet50" if expansion == 4 else "resnet18",
    "fc",
    variant.width,
    labels,
    "avg",
    (variant.channels, *height_and_width(variant.resolution)),
    layers=list(spec["depths"]),
    channels=[width // expansion for width in spec["widths"]],
    output_stride=16 if spec["last_stage"] == "dilated" else 32,
  )


def map_tensors(mapping: TensorMapping) -> None:
  resnet.map_tensors(mapping, BODY)
  if "head/out/kernel" in mapping.parameter_names:
    mapping.linear(CLASSIFIER.removesuffix("."), "head/out")
