"""`objects:[SIDE@]SOURCE`: each object of images with boxes as a labelled image.

The fields are `image` and `label`.

A classifier of the objects is a backbone for a detector that has no published one. The image of an
object is the square around it, 1.5 times as wide as its longer side, or SIDE pixels wide to keep
all objects at one scale. The square is moved to be inside the image, and is no larger than that.
SOURCE is `voc:`, `coco:`, `boxes:`, `tfds:` or `digit_scenes`; crowds, difficult objects and boxes
without area are left out. `image` is a JPEG of quality 95.
"""

import io
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from t5x_like.contrib.detection.data import boxes
from t5x_like.corpora.image_files import (
  ANNOTATED_SIZE,
  UnusableImage,
  read_image,
  to_8_bits,
  turn_upright,
)
from t5x_like.corpora.sources import Record, Skip, field_value, open_source
from t5x_like.corpora.sources._derived import Derived
from t5x_like.errors import UserError

_AROUND = 1.5
_QUALITY = 95
_FIELDS = ("image", "objects")


class Source(Derived):
  """The objects of another source, one record each."""

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    del fields  # of the results
    side, inner = re.fullmatch(r"(?:(\d+)@)?(.*)", spec, re.DOTALL).groups()
    if not inner or side and not int(side):
      raise UserError(
        f"source objects:{spec}: expected objects:SOURCE or objects:SIDE@SOURCE, "
        "such as objects:voc:DIR"
      )
    self._side = int(side) if side else None
    self._inner = open_source(inner, fields=_FIELDS, data_dir=data_dir)
    self._derivation = {"form": "objects.v2", "side": self._side}
    self.name = f"{self._inner.name}_objects"
    self.splits = self._inner.splits

  def classes(self, field: str) -> tuple[str, ...]:
    return self._inner.classes("objects.label")

  def _derive(self, record: Record, where: str, split: str) -> Iterator[tuple[str, Record | Skip]]:
    data = field_value(record, "image", where)
    objects = field_value(record, "objects", where)

    def decode(image):
      return to_8_bits(turn_upright(image, record.get(ANNOTATED_SIZE)))

    try:
      image = read_image(data, decode)
    except UnusableImage as error:
      yield where, Skip(str(error))
      return
    size_4 = np.tile([image.height, image.width], 2)
    boxes_K4 = np.asarray(objects["bbox"], np.float64).reshape(-1, 4)
    if record.get("pixels"):
      boxes_K4 = boxes_K4 / size_4
    boxes_K4, is_used_K, _ = boxes.clip_boxes(boxes_K4)
    for mark in ("is_crowd", "is_difficult"):
      is_used_K &= ~np.asarray(objects.get(mark, np.zeros(len(is_used_K))), bool)
    number = 0
    for box_4, label, is_used in zip(boxes_K4 * size_4, objects["label"], is_used_K, strict=True):
      if is_used:
        square = self._square(image, box_4)
        yield f"{where}, object {number}", {"image": square, "label": str(label)}
        number += 1

  def _square(self, image, box_4: np.ndarray) -> bytes:
    """Return the square around a box in pixels, as a JPEG."""
    y0, x0, y1, x1 = box_4
    side = self._side or max(1, round(_AROUND * max(y1 - y0, x1 - x0)))
    side = min(side, image.height, image.width)
    top = int(np.clip(round((y0 + y1 - side) / 2), 0, image.height - side))
    column = int(np.clip(round((x0 + x1 - side) / 2), 0, image.width - side))
    file = io.BytesIO()
    image.crop((column, top, column + side, top + side)).save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()

  def facts(self, field: str) -> dict[str, Any]:
    return super().facts("objects")
