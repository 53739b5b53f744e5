"""Published models of images where a run's would serve: their classes, and the pixels that they were trained on."""

import json
import math
from collections.abc import Mapping
from typing import Any

from t5x_like.data import features
from t5x_like.data.images import described
from t5x_like.errors import UserError
from t5x_like.files import checked_json
from t5x_like.files.places import place
from t5x_like.resolution import sides
from t5x_like.vocabularies.kinds.labels import LabelVocabulary

FILE = "preprocessor_config.json"
_BILINEAR, _BICUBIC = 2, 3  # Pillow's
_SHORTEST = ("Bit", "CLIP", "ConvNext")  # processors whose size, if it is one number, is the shorter side's


def classes(values: dict[str, Any], labels: int) -> LabelVocabulary:
  """Return the names of the classes in a config of the library or of timm; those without a name have numbers."""
  named = values.get("id2label") or dict(enumerate(values.get("label_names") or ()))
  names = {int(number): str(name) for number, name in named.items() if str(number).isdecimal()}
  return LabelVocabulary([names.get(number, str(number)) for number in range(labels)])


def task_of(variant, values: dict[str, Any], directory: str, flag: str) -> dict[str, Any]:
  """Return the arguments of `config.task` with which a model sees images as it did in its training.

  They are in `preprocessor_config.json` or, of a model of timm, in its config. A run that starts from the model has a
  task of its own, so it needs none of them.

  Args:
    variant: the model's.
    values: its config.
    flag: the flag or key that gave the directory.
  Raises:
    UserError: none are there, and the model is to be used as it is.
  """
  found, path = values.get("pretrained_cfg"), place(directory) / FILE
  if path.is_file():
    found = checked_json.parsed(path.read_bytes(), dict, str(path), "a processor of images; copy it again")
  found = found if isinstance(found, dict) else {}
  mean, std = (_channels(found.get(key) or found.get(f"image_{key}"), variant.channels) for key in ("mean", "std"))
  detects, side = hasattr(variant, "queries"), getattr(variant, "resolution", 0)
  if not mean or not std or min(std) <= 0:
    if not flag.startswith("config.init"):
      raise UserError(
        f"{flag}: {directory} has no {FILE} with image_mean and image_std, by which its images are prepared; copy it"
        " there, or make a workdir of the model with python -m tools.convert_hf and a recipe of its family"
      )
    return {"name": "object_detection" if detects else "image_classification"}
  pixels = {"mean": mean, "std": std, "channels": variant.channels}
  kind = str(found.get("image_processor_type") or found.get("feature_extractor_type") or "")
  size = found.get("size")
  if isinstance(size, int):  # of older files
    shortest = {"shortest_edge": size, "longest_edge": found.get("max_size")}
    size = shortest if detects or kind.startswith(_SHORTEST) else {"height": size, "width": size}
  size = size if isinstance(size, dict) else {}
  edges = {name: n for name, n in size.items() if isinstance(n, int) and 0 < n < 2**15}
  if detects:
    sides_2 = edges.get("shortest_edge", 800), edges.get("longest_edge", 1333)
    return {"name": "object_detection", "shortest": sides_2[0], "resolution": sides_2[1]} | pixels
  convnext, edge = kind.startswith("ConvNext"), edges.get("shortest_edge", edges.get("height"))
  squeezed = found.get("crop_mode") == "squash" or "height" in edges and not found.get("do_center_crop")
  if squeezed or convnext and edge and edge >= 384:
    return {"name": "image_classification", "resolution": side, "fit": "squeezed"} | pixels
  share = found.get("crop_pct") or (0.875 if convnext else min(sides(side)) / edge if edge else 1.0)
  crop = float(share) if isinstance(share, int | float) and 0 < share <= 1 else 1.0
  return {"name": "image_classification", "resolution": side, "crop": crop} | pixels


def processor(task: Mapping[str, Any]) -> dict[str, Any] | None:
  """Return `preprocessor_config.json` for the images of a task's evaluations, the inverse of `task_of`.

  Returns:
    None where the library has no such preparation: bars around the image, or a middle that is not square.
  """
  task = described.arguments(task)
  channels, resolution, mean, std = task["channels"], task["resolution"], list(task["mean"]), list(task["std"])
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
    return made | {"image_processor_type": "DetrImageProcessor", "size": size, "resample": _BILINEAR, "do_pad": True}
  (y, x), fit = sides(resolution), task["fit"]
  made |= {"resample": _BICUBIC}
  if fit == "squeezed":
    return made | {"image_processor_type": "ViTImageProcessor", "size": {"height": y, "width": x}}
  if fit != "cut" or y != x:
    return None
  cut = {"do_center_crop": True, "crop_size": {"height": y, "width": x}}
  shortest = {"shortest_edge": round(y / task["crop"])}
  return made | {"image_processor_type": "BitImageProcessor", "size": shortest} | cut


def pretrained(task: Mapping[str, Any]) -> dict[str, Any]:
  """Return the like of `processor` for the `pretrained_cfg` of timm."""
  if not (made := processor(task)):
    return {}
  task = described.arguments(task)
  way = {"crop_pct": task["crop"], "crop_mode": "center"} if task["fit"] == "cut" else {"crop_mode": "squash"}
  pixels = {"mean": made["image_mean"], "std": made["image_std"], "interpolation": "bicubic"}
  return pixels | {"crop_pct": 1.0} | way


def features_of(variant, task: dict[str, Any]) -> features.Features:
  """Return the features of its training."""
  if hasattr(variant, "queries"):
    return features.of({"name": "object_detection", "boxes": variant.queries} | task)
  return described.images(variant.resolution, variant.channels)


def open_head(model: dict[str, Any]) -> dict[str, Any]:
  """Return a `config.model` whose variant leaves the number of classes to the data of a new run."""
  variant = json.loads(json.dumps(model["variant"]))
  if isinstance(variant.get("head"), dict):
    variant["head"].pop("labels", None)
  return model | {"variant": variant}


def _channels(found: Any, channels: int) -> tuple[float, ...]:
  """Return the numbers of the channels, none for anything else."""
  numbers = isinstance(found, list | tuple) and all(isinstance(x, int | float) and math.isfinite(x) for x in found)
  return tuple(map(float, found)) if numbers and len(found) in (1, channels) else ()
