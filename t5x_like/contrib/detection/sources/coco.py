"""`coco:train=instances_train2017.json,…`: images with boxes in COCO's format.

The fields are `image` and `objects`.

Images are in the directory after an `@` (`coco:train=boxes.json@pictures`), or in COCO's usual
directory, or in the directory of the JSON. Classes are numbered by the ids of the categories, as in
published models, unless the ids far exceed their number. `objects` are as in TensorFlow datasets:
`bbox` (ymin, xmin, ymax, xmax, as shares of the image), `label`, `area` in pixels, `is_crowd`.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from t5x_like.contrib.detection.sources import boxes
from t5x_like.corpora.image_files import ANNOTATED_SIZE
from t5x_like.corpora.sources import Record, Skip
from t5x_like.corpora.sources._files import read_bytes
from t5x_like.errors import UserError, one_line
from t5x_like.files import checked_json, file_names
from t5x_like.files.checked_json import json_type_name
from t5x_like.files.paths import as_path


class Source(boxes.Source):
  """Images and their boxes, from one JSON file per split."""

  form = "coco"

  def default_image_folder(self, path: str) -> str:
    """Return the directory of the images of a file without an `@`.

    For annotations/instances_train2017.json, this is train2017, if it exists, otherwise the
    directory of the file.
    """
    folder, file = os.path.split(path)
    name = file.removesuffix(".json").rpartition("_")[2]
    images = os.path.join(os.path.dirname(folder), name)
    if os.path.basename(folder) == "annotations" and as_path(images).exists():
      return images
    return folder or "."

  def classes(self, field: str) -> tuple[str, ...]:
    first_path = None
    class_names = ()
    for path, _ in self._parts.values():
      names = _class_names(_categories(_load(path), path))
      if first_path is None:
        first_path = path
        class_names = names
      elif names != class_names:
        raise UserError(
          f"{path}: found other categories than in {first_path}, expected the same in every split"
        )
    return class_names

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record | Skip]]:
    path, folder = self._parts[split]
    content = _load(path)
    names = _categories(content, path)
    annotations = _annotations_by_image(content, path)
    begin, end = part or (0, len(content["images"]))
    for number, image in list(enumerate(content["images"]))[begin:end]:
      where = f"{path}, image {number}"
      try:
        file_name = image["file_name"]
        if not file_names.is_inside(file_name):
          raise UserError(
            f"{where}: found file_name {file_names.quote_name(file_name)}, expected a "
            f"path below {folder}; give the directory of the images as FILE@FOLDER"
          )
        height = float(image["height"])
        width = float(image["width"])
        objects = _objects(annotations.get(image["id"], ()), height, width, names)
      except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        fault = _describe_fault(error, names)
        raise UserError(
          f"{where}: found {fault}, expected file_name, height, width and id, and "
          "annotations with bbox [x, y, width, height] and a category_id of its categories"
        ) from error
      file = f"{folder}/{file_name}"
      if not as_path(file).exists():
        yield where, Skip(f"no such file in {folder}")
        continue
      annotated_size = (round(height), round(width))
      yield where, {"image": read_bytes(file), "objects": objects, ANNOTATED_SIZE: annotated_size}

  def split_facts(self, split: str) -> dict[str, Any]:
    path, folder = self._parts[split]
    return {
      "form": "coco.v1",
      "file": os.path.basename(path),
      "images": os.path.basename(folder.rstrip("/")),
      "size": as_path(path).size(),
      "changed": as_path(path).modified_time(),
    }


def _objects(
  annotations: Sequence[dict[str, Any]], height: float, width: float, names: dict[int, str]
) -> dict[str, list]:
  """Return the `objects` of an image of `height` by `width` pixels."""
  objects = {"bbox": [], "label": [], "area": [], "is_crowd": []}
  for annotation in annotations:
    x, y, w, h = map(float, annotation["bbox"])
    objects["bbox"].append([y / height, x / width, (y + h) / height, (x + w) / width])
    objects["label"].append(names[annotation["category_id"]])
    objects["area"].append(float(annotation.get("area", w * h)))
    objects["is_crowd"].append(bool(annotation.get("iscrowd", 0)))
  return objects


def _annotations_by_image(
  content: dict[str, Any], path: str
) -> dict[int | str, list[dict[str, Any]]]:
  """Return the annotations of each image, by the image's id.

  Raises:
    UserError: an image has no id, two have the same, or an annotation names an id of no image.
  """
  annotations: dict[int | str, list[dict[str, Any]]] = {}
  for number, image in enumerate(content["images"]):
    image_id = image.get("id")
    if not isinstance(image_id, int | str) or isinstance(image_id, bool):
      raise UserError(
        f"{path}, image {number}: found a JSON {json_type_name(image_id)} for id, expected an "
        "integer or a string"
      )
    if image_id in annotations:
      raise UserError(
        f"{path}, image {number}: found the id {image_id!r} a second time, expected one image for "
        "each"
      )
    annotations[image_id] = []
  strays = []
  for number, annotation in enumerate(content["annotations"]):
    image_id = annotation.get("image_id")
    if not isinstance(image_id, int | str) or isinstance(image_id, bool):
      raise UserError(
        f"{path}, annotation {number}: found a JSON {json_type_name(image_id)} for image_id, "
        "expected an image's id"
      )
    if image_id in annotations:
      annotations[image_id].append(annotation)
    else:
      strays.append((number, image_id))
  if strays:
    number, stray_id = strays[0]
    kinds = {json_type_name(image_id) for image_id in annotations}
    hint = ""
    if kinds and json_type_name(stray_id) not in kinds:
      hint = f"; the ids of images are a JSON {'/'.join(sorted(kinds))}"
    raise UserError(
      f"{path}: {len(strays)} of {len(content['annotations'])} annotations have an image_id of "
      f"none of the {len(annotations)} images, first annotation {number} "
      f"(image_id {stray_id!r:.40}{hint}); correct or remove them: their images would count as "
      "empty in training"
    )
  return annotations


def _describe_fault(error: Exception, names: dict[int, str]) -> str:
  """Describe the unusable part of an image or its annotations, from the error that it caused."""
  if isinstance(error, ZeroDivisionError):
    return "a size of 0"
  if not isinstance(error, KeyError):
    return f"a value of another kind ({one_line(error)})"
  key = error.args[0]
  if isinstance(key, str):
    return f"no {key!r}"
  return f"category_id {key}, which is none of {sorted(names)[:8]}"


def _load(path: str) -> dict[str, Any]:
  """Read a file of annotations, and check that its lists are lists of objects."""
  content = checked_json.parse_json(read_bytes(path), dict, path, "COCO's JSON of instances")
  for key in ("images", "annotations", "categories"):
    elements = content.get(key)
    is_list = isinstance(elements, list)
    if not is_list or not all(isinstance(element, dict) for element in elements):
      raise UserError(
        f"{path}: found no list of objects {key!r}, expected COCO's JSON of instances"
      )
  return content


def _categories(content: dict[str, Any], path: str) -> dict[int, str]:
  """Return category names by id, in the order of the ids."""
  try:
    names = {category["id"]: category["name"] for category in content["categories"]}
    names = dict(sorted(names.items()))
  except (KeyError, TypeError) as error:
    raise UserError(
      f"{path}: found a category without id or name, expected both in each"
    ) from error
  if not all(isinstance(i, int) and isinstance(name, str) for i, name in names.items()):
    raise UserError(
      f"{path}: found a category whose id is no integer or whose name is no string, expected both"
    )
  return names


def _class_names(names: dict[int, str]) -> tuple[str, ...]:
  """Return the names of the classes 0, 1, ….

  Class i is the category with id i, so COCO's gaps stay. Where the ids are negative or far exceed
  the number of categories, class i is the i-th category.
  """
  if not names or min(names) < 0 or max(names) > 2 * len(names) + 10:
    return tuple(names.values())
  return tuple(names.get(i, f"no category {i}") for i in range(max(names) + 1))
