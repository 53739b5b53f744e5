"""Read and write the `config.json` of timm, which names an architecture and its arguments."""

from t5x_like.interop.config_fields import Fields
from t5x_like.resolution import Resolution, from_sides

# Fields that do not affect logits, are read elsewhere in this module, or repeat `model_args`.
_IGNORED_FIELDS = (
  "architecture",
  "num_features",
  "num_classes",
  "global_pool",
  "label_names",
  "label_descriptions",
  "pretrained_cfg",
)
# Arguments for training, and `num_classes`, which `count_labels` reads.
_IGNORED_ARGUMENTS = (
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
)


def read_arguments(fields: Fields) -> Fields:
  """Return the arguments of the architecture.

  The caller reads them, and then calls their `refuse_unused`.
  """
  fields.ignore(*_IGNORED_FIELDS)
  arguments = fields.section("model_args")
  arguments.ignore(*_IGNORED_ARGUMENTS)
  return arguments


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


def write_config(
  architecture: str,
  classifier: str,
  width: int,
  labels: int,
  pooling: str,
  input_size: tuple[int, int, int],
  **arguments,
) -> dict:
  """Return the fields of a model's `config.json`.

  Args:
    classifier: the name of the classifier's linear layer.
    width: the width of the features.
    labels: the number of classes, 0 for a model without a head.
    pooling: timm's name of the pooling, "token" or "avg".
    input_size: channels, height and width of the images.
    arguments: other arguments of the architecture.
  """
  shared = {"num_classes": labels, "global_pool": pooling}
  pretrained = {
    "input_size": list(input_size),
    "num_classes": labels,
    "classifier": classifier,
  }
  return {
    "architecture": architecture,
    "num_classes": labels,
    "num_features": width,
    "global_pool": pooling,
    "model_args": arguments | {"in_chans": input_size[0]} | shared,
    "pretrained_cfg": pretrained,
  }
