"""Map the ResNets of classifiers and detectors, under names of the library or of timm.

timm's names are torchvision's too.
"""

import re
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.tensor_mapping import TensorMapping

_NORM = {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "variance"}
_BASIC = {"block": "basic", "widths": (64, 128, 256, 512)}
# timm's name -> arguments of `architectures.backbones.resnet`
TIMM_BACKBONES = {
  "resnet18": _BASIC | {"depths": (2, 2, 2, 2)},
  "resnet34": _BASIC | {"depths": (3, 4, 6, 3)},
  "resnet50": {},
  "resnet101": {"depths": (3, 4, 23, 3)},
  "resnet152": {"depths": (3, 8, 36, 3)},
}
DEFAULTS = {
  "stem": 64,
  "widths": (256, 512, 1024, 2048),
  "depths": (3, 4, 6, 3),
  "block": "bottleneck",
  "norm": "frozen_batch",
  "last_stage": "strided",
}
_UNIT = re.compile(
  r"encoder\.stages\.(\d+)\.layers\.(\d+)\.(?:layer\.(\d+)|shortcut)\.(convolution|normalization)\.(\w+)"
)
_TIMM_UNIT = re.compile(r"layer(\d+)\.(\d+)\.(?:(conv|bn)(\d+)|downsample\.([01]))\.(\w+)")
_STEM = {"conv1.": "embedder.embedder.convolution.", "bn1.": "embedder.embedder.normalization."}


def library_name(name: str) -> str:
  """Translate a tensor's name within a ResNet from timm's to the library's.

  Other names are returned unchanged.
  """
  for timm_prefix, prefix in _STEM.items():
    if name.startswith(timm_prefix):
      return prefix + name.removeprefix(timm_prefix)
  match = _TIMM_UNIT.fullmatch(name)
  if match is None:
    return name
  stage, block, kind, number, shortcut, array = match.groups()
  unit = f"layer.{int(number) - 1}" if number else "shortcut"
  kind = "convolution" if kind == "conv" or shortcut == "0" else "normalization"
  return f"encoder.stages.{int(stage) - 1}.layers.{block}.{unit}.{kind}.{array}"


def timm_name(name: str) -> str:
  """Translate a tensor's name within a ResNet from the library's to timm's.

  Other names are returned unchanged.
  """
  for timm_prefix, prefix in _STEM.items():
    if name.startswith(prefix):
      return timm_prefix + name.removeprefix(prefix)
  match = _UNIT.fullmatch(name)
  if match is None:
    return name
  stage, block, number, kind, array = match.groups()
  is_convolution = kind == "convolution"
  if number:
    unit = f"{'conv' if is_convolution else 'bn'}{int(number) + 1}"
  else:
    unit = "downsample.0" if is_convolution else "downsample.1"
  return f"layer{int(stage) + 1}.{block}.{unit}.{array}"


def read_backbone(fields: Fields) -> dict[str, Any]:
  """Return the arguments of `architectures.backbones.resnet` in a config of the library."""
  fields.require("hidden_act", "relu")
  fields.require("downsample_in_first_stage", False)
  fields.require("downsample_in_bottleneck", False)
  widths = fields.take("hidden_sizes", [256, 512, 1024, 2048])
  depths = fields.take("depths", [3, 4, 6, 3])
  blocks = {"bottleneck": "bottleneck", "basic": "basic"}
  return {
    "stem": fields.take("embedding_size", 64),
    "widths": tuple(widths),
    "depths": tuple(depths),
    "block": fields.choose("layer_type", blocks, "bottleneck"),
  }


def complete_backbone(backbone: str | dict, model_type: str) -> dict[str, Any]:
  """Return the arguments of a backbone with the defaults.

  Raises:
    UserError: files of the model type cannot express the backbone.
  """
  spec = backbone if isinstance(backbone, dict) else {"name": backbone}
  complete = DEFAULTS | spec
  if spec["name"] != "resnet" or complete["norm"] != "frozen_batch":
    raise UserError(f"the backbone {spec}: {model_type} has 'resnet' with norm 'frozen_batch'")
  return complete


def write_backbone(spec: dict[str, Any], channels: int) -> dict[str, Any]:
  """Return the fields of the library's ResNet."""
  return {
    "model_type": "resnet",
    "embedding_size": spec["stem"],
    "hidden_sizes": list(spec["widths"]),
    "depths": list(spec["depths"]),
    "layer_type": spec["block"],
    "num_channels": channels,
  }


def map_tensors(mapping: TensorMapping, prefix: str) -> None:
  """Map the parameters under `backbone`.

  Args:
    prefix: the prefix of the ResNet's tensors.
  """
  mapping.ignored_suffixes = ("num_batches_tracked",)
  _map_unit(mapping, f"{prefix}embedder.embedder", "stem")
  for stage, blocks in enumerate(mapping.model.backbone.stages):
    for number, block in enumerate(blocks):
      hf_layer = f"{prefix}encoder.stages.{stage}.layers.{number}"
      path = f"stages/{stage}/{number}"
      for unit in range(len(block.units)):
        _map_unit(mapping, f"{hf_layer}.layer.{unit}", f"{path}/units/{unit}")
      if block.shortcut is not None:
        _map_unit(mapping, f"{hf_layer}.shortcut", f"{path}/shortcut")


def _map_unit(mapping: TensorMapping, hf_name: str, path: str) -> None:
  """Map a convolution and its norm."""
  mapping.fuse(
    f"{hf_name}.convolution.weight",
    [f"backbone/{path}/conv/kernel"],
    split=lambda x: [x.transpose(2, 3, 1, 0)],
    join=lambda arrays: arrays[0].transpose(3, 2, 0, 1),
  )
  for hf_suffix, suffix in _NORM.items():
    mapping.copy(f"{hf_name}.normalization.{hf_suffix}", f"backbone/{path}/norm/{suffix}")
