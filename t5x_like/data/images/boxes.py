"""The boxes of images: stored with the images, checked and padded."""

import dataclasses
import io
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from t5x_like.corpora.sources import Record, Source, field_value
from t5x_like.data.images.pictures import FORMATS
from t5x_like.data.images.store import ImageStore, Notes
from t5x_like.data.supervised.labels import number_of, numbered
from t5x_like.errors import UserError

EMPTY = "boxes without area"
OUTSIDE = "boxes outside of their image"
CUT = "boxes cut off at the border"
_LESS = (EMPTY, OUTSIDE, CUT)
_MARKS = ("crowd", "difficult")


@dataclasses.dataclass(frozen=True)
class Boxes:
  """The concatenated boxes of all images of a store.

  Attributes:
    ends: int64 [N], the end of each image's boxes.
    pixels: int32 [N, 2], height and width of the images.
    boxes: float32 [K, 4]: ymin, xmin, ymax, xmax, as shares of the image, inside of it.
    labels: int32 [K].
    areas: float32 [K], in pixels.
    crowds: bool [K]: groups of objects; they are not learned, and detecting one counts as neither
      right nor wrong.
    difficult: bool [K]: single objects of which the same is true.
    left_out: number of boxes left out or cut, by reason.
  """

  ends: np.ndarray
  pixels: np.ndarray
  boxes: np.ndarray
  labels: np.ndarray
  areas: np.ndarray
  crowds: np.ndarray
  difficult: np.ndarray
  left_out: dict[str, int]

  def of(self, n: int) -> slice:
    """Return the slice of image n's boxes."""
    return slice(int(self.ends[n - 1]) if n else 0, int(self.ends[n]))

  @property
  def learned(self) -> np.ndarray:
    """Return whether boxes are learned and asked for, bool [K]."""
    return ~(self.crowds | self.difficult)

  def slots(self, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the learned boxes, float32 [N, M, 4], and their labels, int32 [N, M]; -1 is padding.

    M is the most boxes that an image has; raise UserError if that is more than `number`.
    """
    image_K = np.searchsorted(self.ends, np.arange(len(self.labels)), side="right")[self.learned]
    first_N = np.searchsorted(image_K, np.arange(len(self.ends)))
    place_K = np.arange(len(image_K)) - first_N[image_K]
    most = int(place_K.max(initial=-1)) + 1
    if most > number:
      worst = image_K[place_K.argmax()]
      raise UserError(
        f"config.task.boxes: found {number}, but image {worst} has {most} boxes; set "
        f"--config.task.boxes={most}, and --config.model.queries to no less"
      )
    boxes_NM4 = np.zeros((len(self.ends), most, 4), np.float32)
    labels_NM = np.full((len(self.ends), most), -1)
    boxes_NM4[image_K, place_K], labels_NM[image_K, place_K] = (
      self.boxes[self.learned],
      self.labels[self.learned],
    )
    return boxes_NM4, labels_NM.astype(np.int32)


def notes(
  source: Source, field: str, image_field: str, classes: tuple[str, ...]
) -> tuple[Notes, tuple[str, ...]]:
  """Return (a store's notes of boxes, the names of the classes).

  Args:
    field: a dictionary of lists, as in TensorFlow datasets: `bbox`, `label` and, if present,
      `area`, `is_crowd`, `is_difficult`.
    classes: the names of the classes; if empty, the source's.
  """
  classes = classes or source.classes(f"{field}.label")
  numbers = numbered(classes, "classes")
  facts = {"boxes": "v2", "field": field, "classes": list(classes)}
  return Notes((field,), facts, _reader(field, image_field, numbers)), tuple(classes)


def _reader(
  field: str, image_field: str, numbers: dict[str, int]
) -> Callable[[Record, str], dict[str, np.ndarray]]:
  from PIL import Image

  def of(record: Record, where: str) -> dict[str, np.ndarray]:
    with Image.open(io.BytesIO(field_value(record, image_field, where)), formats=FORMATS) as image:
      height = image.height
      width = image.width
    objects: Any = field_value(record, field, where)
    try:
      boxes_K4 = np.asarray(objects["bbox"], np.float64).reshape(-1, 4)
      names = list(objects["label"])
      if len(names) != len(boxes_K4):
        raise ValueError
    except (KeyError, TypeError, ValueError):
      raise UserError(
        f"{where}: found {str(objects)[:80]} in field {field!r}, expected lists: `bbox`, of four "
        "numbers each, and `label`, as long"
      ) from None
    labels_K = np.array(
      [number_of(str(name), numbers, f"{field}.label", where) for name in names], np.int32
    )
    if record.get("pixels"):  # the source does not know the size of the image
      boxes_K4 = boxes_K4 / [height, width, height, width]
    boxes_K4, keep_K, counts = inside(boxes_K4)
    own_K = np.prod(boxes_K4[:, 2:] - boxes_K4[:, :2], axis=1) * height * width
    marked = {
      key: np.asarray(objects.get(f"is_{key}", np.zeros(len(names))), bool).reshape(-1)[keep_K]
      for key in _MARKS
    }
    areas_K = np.asarray(objects.get("area", own_K), np.float64).reshape(-1)
    return {
      "boxes": boxes_K4[keep_K].astype(np.float32),
      "box_labels": labels_K[keep_K],
      "areas": np.where(areas_K > 0, areas_K, own_K)[keep_K].astype(np.float32),
      "crowds": marked["crowd"],
      "difficult": marked["difficult"],
      "pixels": np.array([[height, width]], np.int32),
      "left_out": np.array([[counts[reason] for reason in _LESS]], np.int32),
    }

  return of


def of_store(store: ImageStore) -> Boxes:
  held = {name: values for name, (values, _) in store.notes.items()}
  less = {reason: int(n) for reason, n in zip(_LESS, held["left_out"].sum(axis=0)) if n}
  if less:
    print(
      f"data: {store.path}: " + ", ".join(f"{n:,} {reason}" for reason, n in less.items()),
      flush=True,
    )
  ends = np.cumsum(store.notes["boxes"][1])
  names = ("pixels", "boxes", "box_labels", "areas", "crowds", "difficult")
  return Boxes(ends, *(held[name] for name in names), less)


def inside(boxes_K4: np.ndarray) -> tuple[np.ndarray, np.ndarray, Counter]:
  """Return (boxes clipped to the image, mask of the remaining ones, numbers left out or clipped by
  reason).

  A box without area, with NaN or infinite numbers or outside the image is left out.
  """
  finite_K = np.isfinite(boxes_K4).all(axis=1)
  boxes_K4 = np.where(finite_K[:, None], boxes_K4, 0.0)
  area_K = (boxes_K4[:, 2:] > boxes_K4[:, :2]).all(axis=1)
  cut_K4 = boxes_K4.clip(0.0, 1.0)
  keep_K = area_K & (cut_K4[:, 2:] > cut_K4[:, :2]).all(axis=1)
  changed_K = keep_K & (np.abs(cut_K4 - boxes_K4) > 1e-6).any(axis=1)
  found = {EMPTY: ~area_K, OUTSIDE: area_K & ~keep_K, CUT: changed_K}
  return cut_K4, keep_K, Counter({reason: int(rows.sum()) for reason, rows in found.items()})
