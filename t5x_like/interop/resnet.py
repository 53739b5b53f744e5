"""ResNets under the names of the library and of timm, which are torchvision's too: as classifiers
and in detectors."""

import re
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.tensor_mapping import TensorMapping

_NORM = {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "variance"}
_BASIC = {"block": "basic", "widths": (64, 128, 256, 512)}
TIMM_BACKBONES = {  # names there -> arguments of `architectures.backbones.resnet`
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
  """Translate a tensor's name within a ResNet from timm's to the library's; return other names
  unchanged."""
  for theirs, ours in _STEM.items():
    if name.startswith(theirs):
      return ours + name.removeprefix(theirs)
  if not (found := _TIMM_UNIT.fullmatch(name)):
    return name
  stage, block, kind, number, shortcut, array = found.groups()
  unit = f"layer.{int(number) - 1}" if number else "shortcut"
  kind = "convolution" if "conv" == kind or shortcut == "0" else "normalization"
  return f"encoder.stages.{int(stage) - 1}.layers.{block}.{unit}.{kind}.{array}"


def timm_name(name: str) -> str:
  """Undo `renamed`."""
  for theirs, ours in _STEM.items():
    if name.startswith(ours):
      return theirs + name.removeprefix(ours)
  if not (found := _UNIT.fullmatch(name)):
    return name
  stage, block, number, kind, array = found.groups()
  convolution = kind == "convolution"
  unit = (
    f"{'conv' if convolution else 'bn'}{int(number) + 1}"
    if number
    else f"downsample.{int(not convolution)}"
  )
  return f"layer{int(stage) + 1}.{block}.{unit}.{array}"


def read_backbone(own: Fields) -> dict[str, Any]:
  """Return the arguments of `architectures.backbones.resnet` in a config of the library's
  ResNet."""
  own.require("hidden_act", "relu")
  own.require("downsample_in_first_stage", False)
  own.require("downsample_in_bottleneck", False)
  sizes = own.take("hidden_sizes", [256, 512, 1024, 2048])
  depths = own.take("depths", [3, 4, 6, 3])
  block = own.choose("layer_type", {"bottleneck": "bottleneck", "basic": "basic"}, "bottleneck")
  return {
    "stem": own.take("embedding_size", 64),
    "widths": tuple(sizes),
    "depths": tuple(depths),
    "block": block,
  }


def complete_backbone(backbone: str | dict, model_type: str) -> dict[str, Any]:
  """Return the arguments of a backbone with the defaults; raise UserError for one that files cannot
  express."""
  spec = backbone if isinstance(backbone, dict) else {"name": backbone}
  found = DEFAULTS | spec
  if spec["name"] != "resnet" or found["norm"] != "frozen_batch":
    raise UserError(f"the backbone {spec}: {model_type} has 'resnet' with norm 'frozen_batch'")
  return found


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
  _unit(mapping, f"{prefix}embedder.embedder", "stem")
  for stage, blocks in enumerate(mapping.model.backbone.stages):
    for index, block in enumerate(blocks):
      hf_layer = f"{prefix}encoder.stages.{stage}.layers.{index}"
      for number in range(len(block.units)):
        _unit(mapping, f"{hf_layer}.layer.{number}", f"stages/{stage}/{index}/units/{number}")
      if block.shortcut is not None:
        _unit(mapping, f"{hf_layer}.shortcut", f"stages/{stage}/{index}/shortcut")


def _unit(mapping: TensorMapping, hf_name: str, path: str) -> None:
  """Map a convolution and its norm."""
  mapping.fuse(
    f"{hf_name}.convolution.weight",
    [f"backbone/{path}/conv/kernel"],
    split=lambda x: [x.transpose(2, 3, 1, 0)],
    join=lambda xs: xs[0].transpose(3, 2, 0, 1),
  )
  for array, name in _NORM.items():
    mapping.copy(f"{hf_name}.normalization.{array}", f"backbone/{path}/norm/{name}")
