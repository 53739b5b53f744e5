"""Published models of images where a run's would serve: their classes, and the pixels that they
were trained on."""

import json
import math
from collections.abc import Mapping
from typing import Any

from t5x_like.data import task_features
from t5x_like.data.features import Features
from t5x_like.data.images import layout, pictures
from t5x_like.errors import UserError
from t5x_like.files import checked_json
from t5x_like.files.paths import as_path
from t5x_like.resolution import Resolution, from_sides, height_and_width
from t5x_like.vocabularies.kinds.labels import LabelVocabulary

FILE = "preprocessor_config.json"
_METHODS = ("nearest", "lanczos", "bilinear", "bicubic")  # by Pillow's number
# processors whose size, if it is one number, is the shorter side's
_SHORTEST = ("Bit", "CLIP", "ConvNext")
# processors that cut out the middle unless the file says otherwise
_CUTTING = ("Bit", "CLIP", "DeiT")
_USUAL = {  # by model type, the processor of a file that names none, and its size
  **dict.fromkeys(("vit", "vit_mae", "swin", "swinv2"), ("ViT", 224)),
  **dict.fromkeys(("convnext", "resnet"), ("ConvNext", 384)),
  **dict.fromkeys(("dinov2", "dinov2_with_registers"), ("Bit", 224)),
  "deit": ("DeiT", 256),
}
# the library gives them images as the file says
_ANY_SIDE = ("convnext", "resnet", "dinov2", "dinov2_with_registers")


def class_names(values: dict[str, Any], labels: int) -> LabelVocabulary:
  """Return the names of the classes in a config of the library or of timm; those without a name
  have numbers."""
  named = values.get("id2label") or dict(enumerate(values.get("label_names") or ()))
  names = {int(number): str(name) for number, name in named.items() if str(number).isdecimal()}
  return LabelVocabulary([names.get(number, str(number)) for number in range(labels)])


def image_task(variant, values: dict[str, Any], directory: str, flag: str) -> dict[str, Any]:
  """Return the arguments of `config.task` with which a model sees images as it did in its training.

  They are in `preprocessor_config.json` or, of a model of timm, in its config. A run that starts
  from the model has a task of its own, so it needs none of them.

  Args:
    variant: the model's.
    values: its config.
    flag: the flag or key that gave the directory.
  Raises:
    UserError: none are there, and the model is to be used as it is.
  """
  found = values.get("pretrained_cfg")
  path = as_path(directory) / FILE
  if path.is_file():
    found = checked_json.parse_json(
      path.read_bytes(), dict, str(path), "a processor of images; copy it again"
    )
  found = found if isinstance(found, dict) else {}
  mean, std = _normalisation(found, variant.channels)
  detects = hasattr(variant, "queries")
  side = getattr(variant, "resolution", 0)
  if not mean or not std or min(std) <= 0:
    if not flag.startswith("config.init"):
      raise UserError(
        f"{flag}: {directory} has no {FILE} with image_mean and image_std, by which its images "
        "are prepared; copy it there, or make a workdir of the model with python -m "
        "tools.convert_hf and a recipe of its family"
      )
    return {"name": "object_detection" if detects else "image_classification"}
  pixels = {"mean": mean, "std": std, "channels": variant.channels}
  usual = _USUAL.get(values.get("model_type"), ("", None))
  kind = str(found.get("image_processor_type") or found.get("feature_extractor_type") or usual[0])
  size = found.get("size") or usual[1]
  if isinstance(size, int):  # of older files
    shortest = {"shortest_edge": size, "longest_edge": found.get("max_size")}
    size = shortest if detects or kind.startswith(_SHORTEST) else {"height": size, "width": size}
  size = size if isinstance(size, dict) else {}
  edges = {name: n for name, n in size.items() if isinstance(n, int) and 0 < n < 2**15}
  if detects:
    sides_2 = edges.get("shortest_edge", 800), edges.get("longest_edge", 1333)
    return {"name": "object_detection", "shortest": sides_2[0], "resolution": sides_2[1]} | pixels
  convnext = kind.startswith("ConvNext")
  edge = edges.get("shortest_edge", edges.get("height", 0))
  cuts = found.get("do_center_crop", kind.startswith(_CUTTING))
  if values.get("model_type") in _ANY_SIDE:
    side = (_resolution(found.get("crop_size", 224)) if cuts else edge) or side
  squeezed = found.get("crop_mode") == "squash" or "height" in edges or convnext and edge >= 384
  whole = least = min(height_and_width(side))
  if not edges or convnext and not squeezed:
    share = found.get("crop_pct", 0.875)
    whole = int(least / share) if isinstance(share, int | float) and 0 < share <= 1 else least
  elif cuts or not squeezed:
    whole = max(least, edge)
  way = {"crop": least / whole} if whole > least or not squeezed else {}
  way |= {"fit": "squeezed_cut" if way else "squeezed"} if squeezed else {}
  method = _method(found, kind, "" if flag.startswith("config.init") else f"{flag}: {path}")
  return {"name": "image_classification", "resolution": side, "method": method} | way | pixels


def processor_config(task: Mapping[str, Any]) -> dict[str, Any] | None:
  """Return `preprocessor_config.json` for the images of a task's evaluations, the inverse of
  `task_of`.

  Returns:
    None where the library has no such preparation: bars around the image, or a middle that is not
    square.
  """
  task = layout.fill_defaults(task)
  channels = task["channels"]
  resolution = task["resolution"]
  mean = list(task["mean"])
  std = list(task["std"])
  made = {
    "do_normalize": True,
    "image_mean": mean * (channels // len(mean)),
    "image_std": std * (channels // len(std)),
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_resize": True,
    "do_convert_rgb": channels == 3,
  }
  if "shortest" in task:
    size = {"shortest_edge": task["shortest"], "longest_edge": resolution}
    bilinear = _METHODS.index("bilinear")
    return made | {
      "image_processor_type": "DetrImageProcessor",
      "size": size,
      "resample": bilinear,
      "do_pad": True,
    }
  (y, x), fit = height_and_width(resolution), task["fit"]
  made |= {"resample": _METHODS.index(task["method"])}
  if fit == "squeezed":
    return made | {"image_processor_type": "ViTImageProcessor", "size": {"height": y, "width": x}}
  cut = {"do_center_crop": True, "crop_size": {"height": y, "width": x}}
  whole_2 = [pictures.covering_size(side, task["crop"]) for side in (y, x)]
  if fit == "squeezed_cut":
    size = dict(zip(("height", "width"), whole_2, strict=True))
    return made | {"image_processor_type": "DeiTImageProcessor", "size": size} | cut
  if fit != "cut" or y != x:
    return None
  shortest = {"shortest_edge": whole_2[0]}
  return made | {"image_processor_type": "BitImageProcessor", "size": shortest} | cut


def timm_pretrained_config(task: Mapping[str, Any]) -> dict[str, Any]:
  """Return the like of `processor` for the `pretrained_cfg` of timm."""
  if not (made := processor_config(task)):
    return {}
  task = layout.fill_defaults(task)
  least = min(height_and_width(task["resolution"]))
  crop = task["crop"]
  squeezed = task["fit"].startswith("squeezed")
  whole = pictures.covering_size(least, crop)
  crop = crop if int(least / crop) == whole else least / (whole + 0.5)  # timm rounds down
  pixels = {"mean": made["image_mean"], "std": made["image_std"], "interpolation": task["method"]}
  way = {
    "crop_pct": 1.0 if task["fit"] == "squeezed" else crop,
    "crop_mode": "squash" if squeezed else "center",
  }
  return pixels | way


def image_features(variant, task: dict[str, Any]) -> Features:
  """Return the features of its training."""
  if hasattr(variant, "queries"):
    return task_features.declare({"name": "object_detection", "boxes": variant.queries} | task)
  return layout.describe(task.get("resolution", variant.resolution), variant.channels)


def drop_label_count(model: dict[str, Any]) -> dict[str, Any]:
  """Return a `config.model` whose variant leaves the number of classes to the data of a new run."""
  variant = json.loads(json.dumps(model["variant"]))
  if isinstance(variant.get("head"), dict):
    variant["head"].pop("labels", None)
  return model | {"variant": variant}


def _normalisation(
  found: Mapping[str, Any], channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
  """Return mean and deviation of pixels in 0 to 1 that do what a file says, none where it does not
  say it."""
  mean, std = (found.get(key) or found.get(f"image_{key}") for key in ("mean", "std"))
  if found.get("do_normalize") is False:
    mean = 0.0
    std = 1.0
  factor = found.get("rescale_factor", 1 / 255) if found.get("do_rescale", True) else 1.0
  # what 255 becomes
  whole = round(255 * factor, 9) if isinstance(factor, int | float) and factor > 0 else 1.0
  return tuple(tuple(x / whole for x in _channels(each, channels)) for each in (mean, std))


def _method(found: Mapping[str, Any], kind: str, where: str) -> pictures.Method:
  """Return the interpolation of a file, "bicubic" where nobody asks; raise UserError for one that
  is not here."""
  named = found.get("resample", found.get("interpolation"))
  if named is None:
    named = "bilinear" if kind.startswith("ViT") else "bicubic"
  name = _METHODS[named] if isinstance(named, int) and 0 <= named < len(_METHODS) else named
  if name not in _METHODS and where:
    raise UserError(
      f"{where}: found resample {named!r}, expected {', '.join(_METHODS)}, or their numbers 0 to 3"
    )
  return name if name in _METHODS else "bicubic"


def _resolution(found: Any) -> Resolution | None:
  """Return the height and width that a field gives, a number or a dictionary; None for anything
  else."""
  named = found if isinstance(found, dict) else {"height": found, "width": found}
  y = named.get("height")
  x = named.get("width")
  return from_sides(y, x) if all(isinstance(n, int) and 0 < n < 2**15 for n in (y, x)) else None


def _channels(found: Any, channels: int) -> tuple[float, ...]:
  """Return the numbers of the channels, none for anything else."""
  found = [found] if isinstance(found, int | float) else found
  numbers = isinstance(found, list | tuple) and all(
    isinstance(x, int | float) and math.isfinite(x) for x in found
  )
  return tuple(map(float, found)) if numbers and len(found) in (1, channels) else ()
