"""The boxes of images: stored with the images, checked and padded."""

import dataclasses
import io
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from t5x_like import data
from t5x_like.corpora.image_files import FORMATS
from t5x_like.corpora.sources import Record, Source, field_value
from t5x_like.data.images.store import ImageNotes, ImageStore
from t5x_like.data.supervised.labels import label_number, number_labels
from t5x_like.errors import UserError

EMPTY = "boxes without area"
OUTSIDE = "boxes outside of their image"
CUT = "boxes cut off at the border"
# The order of the counts in a store.
_REASONS = (EMPTY, OUTSIDE, CUT)


@dataclasses.dataclass(frozen=True)
class Boxes:
  """The concatenated boxes of all images of a store.

  Attributes:
    ends: int64 [N], the end of each image's boxes.
    pixels: int32 [N, 2], height and width of the images.
    boxes: float32 [K, 4]: ymin, xmin, ymax, xmax, as shares of the image, inside of it.
    labels: int32 [K].
    areas: float32 [K], in pixels.
    crowds: bool [K], groups of objects; they are not learned, and detecting one counts as neither
      right nor wrong.
    difficult: bool [K], single objects that are treated like crowds.
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

  def slice_of_image(self, image: int) -> slice:
    """Return the slice of an image's boxes."""
    start = int(self.ends[image - 1]) if image else 0
    return slice(start, int(self.ends[image]))

  @property
  def are_learned(self) -> np.ndarray:
    """Whether each box is learned and counts in evaluations, bool [K]."""
    return ~(self.crowds | self.difficult)

  def pad_learned(self, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the learned boxes, float32 [N, M, 4], and their labels, int32 [N, M]; -1 is padding.

    M is the most boxes that an image has; raise UserError if that is more than `limit`.
    """
    image_K = np.searchsorted(self.ends, np.arange(len(self.labels)), side="right")
    image_K = image_K[self.are_learned]
    first_N = np.searchsorted(image_K, np.arange(len(self.ends)))
    index_K = np.arange(len(image_K)) - first_N[image_K]
    longest = int(index_K.max(initial=-1)) + 1
    if longest > limit:
      image = image_K[index_K.argmax()]
      raise UserError(
        f"config.task.boxes: found {limit}, but image {image} has {longest} boxes; set "
        f"--config.task.boxes={longest}, and --config.model.queries to no less"
      )
    boxes_NM4 = np.zeros((len(self.ends), longest, 4), np.float32)
    labels_NM = np.full((len(self.ends), longest), -1)
    boxes_NM4[image_K, index_K] = self.boxes[self.are_learned]
    labels_NM[image_K, index_K] = self.labels[self.are_learned]
    return boxes_NM4, labels_NM.astype(np.int32)


def make_notes(
  source: Source, field: str, image_field: str, classes: tuple[str, ...]
) -> tuple[ImageNotes, tuple[str, ...]]:
  """Return (a store's notes of boxes, the names of the classes).

  Args:
    source: the source of the records.
    field: a dictionary of lists, as in TensorFlow datasets: `bbox`, `label` and, if present,
      `area`, `is_crowd`, `is_difficult`.
    image_field: the field of the encoded image.
    classes: the names of the classes; if empty, the source's.
  """
  classes = classes or source.classes(f"{field}.label")
  numbers = number_labels(classes, "classes")
  facts = {"boxes": "v2", "field": field, "classes": list(classes)}
  return ImageNotes((field,), facts, _reader(field, image_field, numbers)), tuple(classes)


def _reader(
  field: str, image_field: str, class_numbers: dict[str, int]
) -> Callable[[Record, str], dict[str, np.ndarray]]:
  """Return a function that makes the arrays of a record's boxes."""

  def read(record: Record, where: str) -> dict[str, np.ndarray]:
    height, width = _image_size(field_value(record, image_field, where))
    objects: Any = field_value(record, field, where)
    boxes_K4, names = _boxes_and_names(objects, field, where)
    labels_K = np.array(
      [label_number(str(name), class_numbers, f"{field}.label", where) for name in names], np.int32
    )
    if record.get("pixels"):  # the source does not know the size of the image
      boxes_K4 = boxes_K4 / [height, width, height, width]
    boxes_K4, keep_K, counts = clip_boxes(boxes_K4)
    box_areas_K = np.prod(boxes_K4[:, 2:] - boxes_K4[:, :2], axis=1) * height * width
    areas_K = np.asarray(objects.get("area", box_areas_K), np.float64).reshape(-1)
    areas_K = np.where(areas_K > 0, areas_K, box_areas_K)
    return {
      "boxes": boxes_K4[keep_K].astype(np.float32),
      "box_labels": labels_K[keep_K],
      "areas": areas_K[keep_K].astype(np.float32),
      "crowds": _marks(objects, "is_crowd", len(names))[keep_K],
      "difficult": _marks(objects, "is_difficult", len(names))[keep_K],
      "pixels": np.array([[height, width]], np.int32),
      "left_out": np.array([[counts[reason] for reason in _REASONS]], np.int32),
    }

  return read


def _image_size(data: bytes) -> tuple[int, int]:
  """Return the height and width of an encoded image."""
  from PIL import Image

  with Image.open(io.BytesIO(data), formats=FORMATS) as image:
    return image.height, image.width


def _boxes_and_names(objects: Any, field: str, where: str) -> tuple[np.ndarray, list]:
  """Return the boxes of a record, float64 [K, 4], and the names of their classes."""
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
  return boxes_K4, names


def _marks(objects: Any, key: str, num_boxes: int) -> np.ndarray:
  """Return the marks of a record's boxes, bool [K]; false where the record has none."""
  return np.asarray(objects.get(key, np.zeros(num_boxes)), bool).reshape(-1)


def read_boxes(store: ImageStore) -> Boxes:
  """Return the boxes of an open store, and report the boxes that are left out or cut."""
  arrays = {name: values for name, (values, _) in store.notes.items()}
  left_out = {}
  for reason, count in zip(_REASONS, arrays["left_out"].sum(axis=0)):
    if count:
      left_out[reason] = int(count)
  if left_out:
    counts = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
    data.announce(f"{store.path}: {counts}")
  _, boxes_per_image = store.notes["boxes"]
  return Boxes(
    ends=np.cumsum(boxes_per_image),
    pixels=arrays["pixels"],
    boxes=arrays["boxes"],
    labels=arrays["box_labels"],
    areas=arrays["areas"],
    crowds=arrays["crowds"],
    difficult=arrays["difficult"],
    left_out=left_out,
  )


def clip_boxes(boxes_K4: np.ndarray) -> tuple[np.ndarray, np.ndarray, Counter]:
  """Clip boxes to the image.

  A box without area, with NaN or infinite numbers or outside the image is left out.

  Returns:
    (clipped boxes float64 [K, 4], mask of the remaining ones bool [K], numbers of boxes left out or
    clipped, by reason).
  """
  finite_K = np.isfinite(boxes_K4).all(axis=1)
  boxes_K4 = np.where(finite_K[:, None], boxes_K4, 0.0)
  has_area_K = (boxes_K4[:, 2:] > boxes_K4[:, :2]).all(axis=1)
  cut_K4 = boxes_K4.clip(0.0, 1.0)
  keep_K = has_area_K & (cut_K4[:, 2:] > cut_K4[:, :2]).all(axis=1)
  changed_K = keep_K & (np.abs(cut_K4 - boxes_K4) > 1e-6).any(axis=1)
  counts = Counter()
  counts[EMPTY] = int((~has_area_K).sum())
  counts[OUTSIDE] = int((has_area_K & ~keep_K).sum())
  counts[CUT] = int(changed_K.sum())
  return cut_K4, keep_K, counts
