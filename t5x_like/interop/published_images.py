"""Published models of images where a run's would serve: their classes, and the pixels that they were trained on."""

import json
import math
from typing import Any

from t5x_like.data import features
from t5x_like.data.images import described
from t5x_like.errors import UserError
from t5x_like.files import checked_json
from t5x_like.files.places import place
from t5x_like.resolution import sides
from t5x_like.vocabularies.kinds.labels import LabelVocabulary

FILE = "preprocessor_config.json"


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
  size = found.get("size") if isinstance(found.get("size"), dict) else {}
  edges = {name: n for name, n in size.items() if isinstance(n, int) and 0 < n < 2**15}
  if detects:
    sides_2 = edges.get("shortest_edge", 800), edges.get("longest_edge", 1333)
    return {"name": "object_detection", "shortest": sides_2[0], "resolution": sides_2[1]} | pixels
  if "height" in edges and not found.get("do_center_crop"):
    return {"name": "image_classification", "resolution": side, "fit": "squeezed"} | pixels
  share = found.get("crop_pct") or (min(sides(side)) / edges["shortest_edge"] if "shortest_edge" in edges else 1.0)
  crop = float(share) if isinstance(share, int | float) and 0 < share <= 1 else 1.0
  return {"name": "image_classification", "resolution": side, "crop": crop} | pixels


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
