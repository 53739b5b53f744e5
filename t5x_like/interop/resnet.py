"""The ResNets of classifiers and detectors, under names of `transformers` or of timm.

timm's names are torchvision's too.
"""

from t5x_like.interop.config_table import Choice, Field, Numbers, Required
from t5x_like.interop.tensor_layouts import map_batch_norm, map_convolution
from t5x_like.interop.tensor_mapping import Layout, match_numbers, number_name

_BASIC = {"block": "basic", "widths": (64, 128, 256, 512)}
# timm's name -> arguments of `architectures.backbones.resnet`
TIMM_BACKBONES = {
  "resnet18": _BASIC | {"depths": (2, 2, 2, 2)},
  "resnet34": _BASIC | {"depths": (3, 4, 6, 3)},
  "resnet50": {},
  "resnet101": {"depths": (3, 4, 23, 3)},
  "resnet152": {"depths": (3, 8, 36, 3)},
}
WIDTHS = (256, 512, 1024, 2048)
# The fields of a backbone in a config of `transformers`.
BACKBONE = (
  Field("embedding_size", "backbone.stem", default=64),
  Numbers("hidden_sizes", "backbone.widths", default=WIDTHS),
  Numbers("depths", "backbone.depths", default=(3, 4, 6, 3)),
  Choice(
    "layer_type",
    "backbone.block",
    {"bottleneck": "bottleneck", "basic": "basic"},
    default="bottleneck",
  ),
  Required("hidden_act", "relu"),
  Required("downsample_in_first_stage", False),
  Required("downsample_in_bottleneck", False),
)

_BLOCK = "backbone/stages/{stage}/{block}"
_CONVOLUTIONS = {
  "stem": Layout("backbone/stem/conv", map_convolution),
  "stem norm": Layout("backbone/stem/norm", map_batch_norm),
  "unit": Layout(f"{_BLOCK}/units/{{unit}}/conv", map_convolution),
  "unit norm": Layout(f"{_BLOCK}/units/{{unit}}/norm", map_batch_norm),
  "shortcut": Layout(f"{_BLOCK}/shortcut/conv", map_convolution),
  "shortcut norm": Layout(f"{_BLOCK}/shortcut/norm", map_batch_norm),
}
_LIBRARY_NAMES = {
  "stem": "embedder.embedder.convolution",
  "stem norm": "embedder.embedder.normalization",
  "unit": "encoder.stages.{stage}.layers.{block}.layer.{unit}.convolution",
  "unit norm": "encoder.stages.{stage}.layers.{block}.layer.{unit}.normalization",
  "shortcut": "encoder.stages.{stage}.layers.{block}.shortcut.convolution",
  "shortcut norm": "encoder.stages.{stage}.layers.{block}.shortcut.normalization",
}
_TIMM_NAMES = {
  "stem": "conv1",
  "stem norm": "bn1",
  "unit": "layer{stage+1}.{block}.conv{unit+1}",
  "unit norm": "layer{stage+1}.{block}.bn{unit+1}",
  "shortcut": "layer{stage+1}.{block}.downsample.0",
  "shortcut norm": "layer{stage+1}.{block}.downsample.1",
}
# The tensors of a backbone.
TRANSFORMERS_TENSORS = {name: _CONVOLUTIONS[part] for part, name in _LIBRARY_NAMES.items()}
TIMM_TENSORS = {name: _CONVOLUTIONS[part] for part, name in _TIMM_NAMES.items()}
IGNORED_SUFFIXES = ("num_batches_tracked",)


def transformers_name(name: str) -> str:
  """Translate a tensor's name within a ResNet from timm to `transformers`.

  Other names are returned unchanged.
  """
  return _translate(name, _TIMM_NAMES, _LIBRARY_NAMES)


def timm_name(name: str) -> str:
  """Translate a tensor's name within a ResNet from `transformers` to timm.

  Other names are returned unchanged.
  """
  return _translate(name, _LIBRARY_NAMES, _TIMM_NAMES)


def _translate(name: str, source: dict[str, str], target: dict[str, str]) -> str:
  module, _, array = name.rpartition(".")
  for part, pattern in source.items():
    numbers = match_numbers(pattern, module)
    if numbers is not None:
      return f"{number_name(target[part], numbers)}.{array}"
  return name
