"""Compare a detector's likeliest boxes with constant boxes, by their overlap (IoU)."""

import itertools
from collections.abc import Iterator

import numpy as np

OVERLAP_METRICS = ("IoU_best", "IoU_constant")
_STARTS = 100  # objects of a class whose boxes are tried as the constant box
_STEPS = (0.1, 0.05, 0.02, 0.01, 0.005)  # by which its edges are moved then, as shares of the image
_MOVES = np.array([move for move in itertools.product((-1.0, 0.0, 1.0), repeat=4) if any(move)])


def mean_overlaps(truth, detections: list[tuple], classes: tuple[str, ...]) -> dict[str, float]:
  """Compute the mean IoU of the likeliest boxes and of the best constant boxes, in percent.

  An image counts once for each class that it shows, with the IoU of a box and the object of the
  class that it overlaps most. The box is the likeliest detection of the class (IoU 0 without one),
  or the class's constant box in shares of the image, found by a search on the same images. The
  means are over the images of a class, then over the classes.

  Args:
    truth, detections, classes: as in `evals.detection.average_precision`.
  Returns:
    `OVERLAP_METRICS`; nothing if the images show no object.
  """
  overlaps = np.array(list(_class_overlaps(truth, detections, len(classes))))
  if not len(overlaps):
    return {}
  return {name: 100 * float(mean) for name, mean in zip(OVERLAP_METRICS, overlaps.mean(axis=0))}


def _class_overlaps(truth, detections: list[tuple], classes: int) -> Iterator[tuple[float, float]]:
  """Yield the mean IoU of the likeliest and of the constant boxes for every class with objects."""
  for label in range(classes):
    objects = []
    likeliest = []
    for n, corners_Q4, class_Q, score_Q in detections:
      rows = truth.slice_of_image(n)
      boxes_K4 = truth.boxes[rows][(truth.labels[rows] == label) & truth.are_learned[rows]].astype(
        np.float64
      )
      if len(boxes_K4):
        score_Q = np.where(class_Q == label, score_Q, -1.0)
        objects.append(boxes_K4)
        if score_Q.max(initial=-1.0) < 0:
          likeliest.append(np.zeros(4))
        else:
          likeliest.append(corners_Q4[score_Q.argmax()] / np.tile(truth.pixels[n], 2))
    if objects:
      best = [iou(box_4[None], boxes_K4).max() for box_4, boxes_K4 in zip(likeliest, objects)]
      yield float(np.mean(best)), _constant_box_overlap(objects)


def _constant_box_overlap(objects: list[np.ndarray]) -> float:
  """Return the highest mean IoU of a constant box with its nearest object in each image.

  Args:
    objects: the boxes of each image, [K, 4].
  """
  boxes_K4 = np.concatenate(objects)
  starts_N = np.cumsum([0, *map(len, objects[:-1])])

  def mean_overlap(boxes_A4):
    return np.maximum.reduceat(iou(boxes_A4, boxes_K4), starts_N, axis=1).mean(axis=1)

  start_rows = np.linspace(0, len(boxes_K4) - 1, min(len(boxes_K4), _STARTS)).astype(int)
  candidates_A4 = np.concatenate([boxes_K4[start_rows], np.median(boxes_K4, axis=0)[None]])
  mean_A = mean_overlap(candidates_A4)
  box_4 = candidates_A4[mean_A.argmax()]
  best = mean_A.max()
  for step in _STEPS:
    while True:
      candidates_A4 = box_4 + step * _MOVES
      mean_A = mean_overlap(candidates_A4)
      if not mean_A.max() > best:
        break
      box_4 = candidates_A4[mean_A.argmax()]
      best = mean_A.max()
  return float(best)


def iou(a_A4: np.ndarray, b_K4: np.ndarray) -> np.ndarray:
  """Return the IoU of all pairs of boxes, float64 [A, K].

  A box is (ymin, xmin, ymax, xmax). The IoU with a box without area is 0.
  """
  low = np.maximum(a_A4[:, None, :2], b_K4[:, :2])
  high = np.minimum(a_A4[:, None, 2:], b_K4[:, 2:])
  intersection_AK = np.prod(np.maximum(high - low, 0.0), axis=-1)
  area_A = np.prod(np.maximum(a_A4[:, 2:] - a_A4[:, :2], 0.0), axis=1)
  area_K = np.prod(np.maximum(b_K4[:, 2:] - b_K4[:, :2], 0.0), axis=1)
  union_AK = area_A[:, None] + area_K - intersection_AK
  return intersection_AK / np.maximum(union_AK, 1e-12)
