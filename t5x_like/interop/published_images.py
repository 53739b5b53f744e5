"""Translate the preparation of images between `preprocessor_config.json` and `config.task`."""

import math
from collections.abc import Mapping
from typing import Any

from t5x_like.data.images import layout, pictures
from t5x_like.errors import UserError
from t5x_like.files import checked_json
from t5x_like.files.paths import as_path
from t5x_like.resolution import Resolution, from_sides, height_and_width

FILE = "preprocessor_config.json"
_METHODS = ("nearest", "lanczos", "bilinear", "bicubic")  # by Pillow's number
# processors for which a size of one number is the length of the shorter side
_SHORTEST = ("Bit", "CLIP", "ConvNext")
# processors that crop the centre unless the file says otherwise
_CENTRE_CROPPING = ("Bit", "CLIP", "DeiT")
# model type -> the processor of a file that names none, and its size
_DEFAULT_PROCESSORS = {
  **dict.fromkeys(("vit", "vit_mae", "swin", "swinv2"), ("ViT", 224)),
  **dict.fromkeys(("convnext", "resnet"), ("ConvNext", 384)),
  **dict.fromkeys(("dinov2", "dinov2_with_registers"), ("Bit", 224)),
  "deit": ("DeiT", 256),
}
# model types whose resolution is the processor's size instead of the config's
_ANY_SIDE = ("convnext", "resnet", "dinov2", "dinov2_with_registers")


def read_image_task(variant, values: dict[str, Any], directory: str, flag: str) -> dict[str, Any]:
  """Return the arguments of `config.task` that prepare images as in a model's training.

  They are read from `preprocessor_config.json` or, for a model of timm, from its config. A run that
  starts from the model has its own task and needs none of them.

  Args:
    variant: the model's variant.
    values: the model's config.
    directory: the directory of the model.
    flag: the flag or key that gave the directory.
  Raises:
    UserError: the directory states no mean and deviation, and the model is used without a task.
  """
  path = as_path(directory) / FILE
  config = values.get("pretrained_cfg")
  if path.is_file():
    config = checked_json.parse_json(
      path.read_bytes(), dict, str(path), "a processor of images; copy it again"
    )
  if not isinstance(config, dict):
    config = {}
  starts_run = flag.startswith("config.init")
  is_detector = hasattr(variant, "queries")
  mean, std = _read_normalisation(config, variant.channels)
  if not mean or not std or min(std) <= 0:
    if not starts_run:
      raise UserError(
        f"{flag}: {directory} has no {FILE} with image_mean and image_std, by which its images "
        "are prepared; copy it there, or make a workdir of the model with python -m "
        "tools.convert_hf and a recipe of its family"
      )
    return {"name": "object_detection" if is_detector else "image_classification"}
  pixels = {"mean": mean, "std": std, "channels": variant.channels}
  processor, default_size = _DEFAULT_PROCESSORS.get(values.get("model_type"), ("", None))
  processor = config.get("feature_extractor_type") or processor
  processor = str(config.get("image_processor_type") or processor)
  edges = _read_edges(config, processor, config.get("size") or default_size, is_detector)
  if is_detector:
    return {
      "name": "object_detection",
      "shortest": edges.get("shortest_edge", 800),
      "resolution": edges.get("longest_edge", 1333),
    } | pixels
  edge = edges.get("shortest_edge", edges.get("height", 0))
  crops_centre = config.get("do_center_crop", processor.startswith(_CENTRE_CROPPING))
  resolution = getattr(variant, "resolution", 0)
  if values.get("model_type") in _ANY_SIDE:
    file_resolution = _read_resolution(config.get("crop_size", 224)) if crops_centre else edge
    resolution = file_resolution or resolution
  where = "" if starts_run else f"{flag}: {path}"
  shorter_side = min(height_and_width(resolution))
  return {
    "name": "image_classification",
    "resolution": resolution,
    "method": _read_method(config, processor, where),
    **_read_fit(config, processor, edges, edge, crops_centre, shorter_side),
    **pixels,
  }


def _read_edges(
  config: Mapping[str, Any], processor: str, size: Any, is_detector: bool
) -> dict[str, int]:
  """Return the edges in the `size` of a processor, by name."""
  if isinstance(size, int):  # in older files
    if is_detector or processor.startswith(_SHORTEST):
      size = {"shortest_edge": size, "longest_edge": config.get("max_size")}
    else:
      size = {"height": size, "width": size}
  if not isinstance(size, dict):
    return {}
  return {name: edge for name, edge in size.items() if isinstance(edge, int) and 0 < edge < 2**15}


def _read_fit(
  config: Mapping[str, Any],
  processor: str,
  edges: dict[str, int],
  edge: int,
  crops_centre: bool,
  shorter_side: int,
) -> dict[str, Any]:
  """Return the arguments `crop` and `fit` of a task.

  Args:
    config: the config of the processor.
    processor: the name of its class.
    edges: the edges in its `size`.
    edge: the size of the image whose centre is cropped.
    crops_centre: whether it crops the centre.
    shorter_side: the shorter side of the model's images.
  """
  is_convnext = processor.startswith("ConvNext")
  is_squeezed = (
    config.get("crop_mode") == "squash" or "height" in edges or (is_convnext and edge >= 384)
  )
  uncut_side = shorter_side
  if not edges or (is_convnext and not is_squeezed):
    share = config.get("crop_pct", 0.875)
    if isinstance(share, int | float) and 0 < share <= 1:
      uncut_side = int(shorter_side / share)
  elif crops_centre or not is_squeezed:
    uncut_side = max(shorter_side, edge)
  arguments = {}
  if uncut_side > shorter_side or not is_squeezed:
    arguments["crop"] = shorter_side / uncut_side
  if is_squeezed:
    arguments["fit"] = "squeezed_cut" if "crop" in arguments else "squeezed"
  return arguments


def processor_config(task: Mapping[str, Any]) -> dict[str, Any] | None:
  """Return `preprocessor_config.json` for the images of a task's evaluations.

  This is the inverse of `read_image_task`.

  Returns:
    None where `transformers` has no equal preparation: padding around the image, or a centre crop
    that is not square.
  """
  task = layout.fill_defaults(task)
  channels = task["channels"]
  resolution = task["resolution"]
  mean = list(task["mean"])
  std = list(task["std"])
  config = {
    "do_normalize": True,
    "image_mean": mean * (channels // len(mean)),
    "image_std": std * (channels // len(std)),
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_resize": True,
    "do_convert_rgb": channels == 3,
  }
  if "shortest" in task:
    return config | {
      "image_processor_type": "DetrImageProcessor",
      "size": {"shortest_edge": task["shortest"], "longest_edge": resolution},
      "resample": _METHODS.index("bilinear"),
      "do_pad": True,
    }
  height, width = height_and_width(resolution)
  config["resample"] = _METHODS.index(task["method"])
  if task["fit"] == "squeezed":
    size = {"height": height, "width": width}
    return config | {"image_processor_type": "ViTImageProcessor", "size": size}
  uncut_height = pictures.covering_size(height, task["crop"])
  uncut_width = pictures.covering_size(width, task["crop"])
  cut = {"do_center_crop": True, "crop_size": {"height": height, "width": width}}
  if task["fit"] == "squeezed_cut":
    size = {"height": uncut_height, "width": uncut_width}
    return config | {"image_processor_type": "DeiTImageProcessor", "size": size} | cut
  if task["fit"] != "cut" or height != width:
    return None
  size = {"shortest_edge": uncut_height}
  return config | {"image_processor_type": "BitImageProcessor", "size": size} | cut


def timm_pretrained_config(task: Mapping[str, Any]) -> dict[str, Any]:
  """Return the `pretrained_cfg` of timm for the images of a task's evaluations.

  Returns:
    {} where `processor_config` returns None.
  """
  processor = processor_config(task)
  if processor is None:
    return {}
  task = layout.fill_defaults(task)
  shorter_side = min(height_and_width(task["resolution"]))
  crop = task["crop"]
  uncut_side = pictures.covering_size(shorter_side, crop)
  if int(shorter_side / crop) != uncut_side:
    crop = shorter_side / (uncut_side + 0.5)  # timm rounds down
  return {
    "mean": processor["image_mean"],
    "std": processor["image_std"],
    "interpolation": task["method"],
    "crop_pct": 1.0 if task["fit"] == "squeezed" else crop,
    "crop_mode": "squash" if task["fit"].startswith("squeezed") else "center",
  }


def _read_normalisation(
  config: Mapping[str, Any], channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
  """Return the mean and deviation of pixels in 0 to 1 that have the effect of a processor.

  Each is () where the file does not state it.
  """
  mean = config.get("mean") or config.get("image_mean")
  std = config.get("std") or config.get("image_std")
  if config.get("do_normalize") is False:
    mean = 0.0
    std = 1.0
  factor = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
  largest = 1.0  # the value of a pixel of 255 after rescaling
  if isinstance(factor, int | float) and factor > 0:
    largest = round(255 * factor, 9)
  means = tuple(value / largest for value in _channel_values(mean, channels))
  return means, tuple(value / largest for value in _channel_values(std, channels))


def _read_method(config: Mapping[str, Any], processor: str, where: str) -> pictures.Method:
  """Return the interpolation of a processor.

  Args:
    processor: the name of its class.
    where: the file, for messages; "" to replace an unknown interpolation by "bicubic".
  Raises:
    UserError: the interpolation is not supported.
  """
  method = config.get("resample", config.get("interpolation"))
  if method is None:
    method = "bilinear" if processor.startswith("ViT") else "bicubic"
  name = method
  if isinstance(method, int) and 0 <= method < len(_METHODS):
    name = _METHODS[method]
  if name in _METHODS:
    return name
  if where:
    raise UserError(
      f"{where}: found resample {method!r}, expected {', '.join(_METHODS)}, or their numbers 0 to 3"
    )
  return "bicubic"


def _read_resolution(size: Any) -> Resolution | None:
  """Return the height and width in a field, a number or a dictionary; None for anything else."""
  if not isinstance(size, dict):
    size = {"height": size, "width": size}
  sides = (size.get("height"), size.get("width"))
  if all(isinstance(side, int) and 0 < side < 2**15 for side in sides):
    return from_sides(*sides)
  return None


def _channel_values(values: Any, channels: int) -> tuple[float, ...]:
  """Return the number for each channel, or for all of them; () for anything else."""
  if isinstance(values, int | float):
    values = [values]
  if not isinstance(values, list | tuple) or len(values) not in (1, channels):
    return ()
  if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
    return ()
  return tuple(map(float, values))
