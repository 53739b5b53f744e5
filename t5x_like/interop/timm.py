"""Read and write the `config.json` of timm, which names an architecture and its arguments."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import Entry, Ignored, ModelType, Section
from t5x_like.interop.encoders import Head, find_head
from t5x_like.interop.variant_paths import complete_spec
from t5x_like.resolution import Resolution, from_sides, height_and_width

# Fields that do not affect logits, are read elsewhere in this module, or repeat `model_args`.
_IGNORED_FIELDS = Ignored(
  "architecture",
  "num_features",
  "num_classes",
  "global_pool",
  "label_names",
  "label_descriptions",
  "pretrained_cfg",
)
# Arguments for training, and the arguments that `TimmHead` reads.
_IGNORED_ARGUMENTS = Ignored(
  "drop_rate",
  "pos_drop_rate",
  "patch_drop_rate",
  "proj_drop_rate",
  "attn_drop_rate",
  "drop_path_rate",
  "drop_block_rate",
  "weight_init",
  "zero_init_last",
  "num_classes",
  "global_pool",
)


@dataclasses.dataclass(frozen=True)
class TimmHead(Entry):
  """The head, in `num_classes` and `global_pool`; a model without classes has only features.

  Attributes:
    heads: the heads with a classifier, then the heads without one. The `task` of each is the name
      of its pooling in timm; the pooling of the first is the default.
    classifier: the name of the classifier's linear layer.
  """

  heads: tuple[Head, ...]
  classifier: str

  def read(self, fields: Fields) -> dict[str, Any]:
    labels = count_labels(fields)
    pooling = fields.values.get("global_pool") or self.heads[0].task
    arguments = fields.section("model_args")
    arguments.require("global_pool", pooling)
    for head in self.heads:
      if head.task == pooling and _classifies(head) == (labels > 0):
        return {"head": head.spec(labels)}
    poolings = dict.fromkeys(head.task for head in self.heads)
    raise fields.refusal("global_pool", pooling, " or ".join(map(repr, poolings)))

  def write(self, variant: Any) -> dict[str, Any]:
    return {
      "num_features": variant.dims.embed,
      **self.arguments(variant),
      "pretrained_cfg": {
        "input_size": [variant.channels, *height_and_width(variant.resolution)],
        "num_classes": self.arguments(variant)["num_classes"],
        "classifier": self.classifier,
      },
    }

  def arguments(self, variant: Any) -> dict[str, Any]:
    """Return the number of classes, 0 for a model without a head, and the pooling."""
    head = find_head(variant, self.heads, "timm")
    labels = complete_spec(variant.head).get("labels", 0)
    return {"num_classes": labels, "global_pool": head.task}


def _classifies(head: Head) -> bool:
  return head.name == "image_classification"


def count_labels(fields: Fields) -> int:
  """Return the number of classes, 0 for a model without a head."""
  arguments = fields.values.get("model_args") or {}
  return arguments.get("num_classes", fields.values.get("num_classes", 1000))


def read_resolution(fields: Fields, default: int) -> Resolution:
  """Return the height and width of the images that a file of weights was made for."""
  pretrained = fields.values.get("pretrained_cfg") or {}
  size = pretrained.get("input_size") or [3, default, default]
  if not isinstance(size, list) or len(size) != 3 or not all(isinstance(n, int) for n in size):
    raise fields.refusal("pretrained_cfg.input_size", size, "channels, height and width")
  _, height, width = size
  return from_sides(height, width)


def entries(
  architecture: Entry,
  head: TimmHead,
  arguments: tuple[Entry, ...],
  read_defaults: Callable[[Fields], Mapping[str, Any]],
) -> tuple[Entry, ...]:
  """Return the entries of a config.

  Args:
    architecture: the entry of `architecture`.
    head: the entry of the head.
    arguments: the entries of the architecture's arguments, in `model_args`.
    read_defaults: returns the arguments that the architecture has by itself.
  """
  return (
    architecture,
    Section("model_args", "", (*arguments, _IGNORED_ARGUMENTS), head.arguments, read_defaults),
    head,
    _IGNORED_FIELDS,
  )


class TimmType(ModelType):
  """A type of timm, whose configs name neither a class nor a model type."""

  def identity(self) -> dict[str, Any]:
    return {}
