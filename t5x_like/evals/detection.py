"""Detection: COCO's average precision and recall (Lin et al. 2014), computed by pycocotools, in
percent."""

import contextlib
import io
import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.errors import UserError
from t5x_like.evals import EvalContext, EvalResult, _best_boxes
from t5x_like.parallel.rules import fetch
from t5x_like.slots import PositiveInt

_SIZES = ("small", "medium", "large")
PRECISION_METRICS = ("AP", "AP50", "AP75", *(f"AP_{size}" for size in _SIZES))
SWAPPED_METRIC = "AP_swapped"
_SAMPLES = 8
SHOWN_SCORE = 0.5


class Evaluator:
  """An evaluator that detects the objects of every image once. Each query predicts its likeliest
  class of object.

  Args:
    max_examples: the number of images, from the first; None means all.
    at_most: the number of likeliest detections per image that count; COCO's is 100.

  Raises:
    UserError: the task has no boxes, or the model is no detector.
  """

  def __init__(
    self,
    context: EvalContext,
    *,
    max_examples: PositiveInt | None = None,
    at_most: PositiveInt = 100,
  ):
    task = context.task
    self._context = context
    self._most = max_examples
    self._at_most = at_most
    self._classes = task.classes
    if getattr(task, "boxes", None) is None:
      made = ", ".join(task.features)
      raise UserError(
        f"evaluator detection: is for images with boxes, task {task.name} makes {made}"
      )
    if "image_size" not in context.model.REQUIRED_FEATURES:
      raise UserError("evaluator detection: is for detectors, such as --config.model.name=detr")

    self._run = context.jit(
      lambda model, batch: (*top_detections(model.outputs(batch)), batch["example_index"])
    )

  def metric_names(self) -> tuple[str, ...]:
    return (
      *PRECISION_METRICS,
      *recall_metrics(self._at_most),
      *class_metrics(self._classes),
      SWAPPED_METRIC,
      *_best_boxes.OVERLAP_METRICS,
      "images",
    )

  def __call__(self, arrays: dict[str, jax.Array]) -> EvalResult:
    """Return `AP`, its parts and the number of `images`; a part for which the images hold no object
    is left out.

    `AP_swapped` is the AP of the detections of every image on the next image, as shares of its
    size: near `AP`, the boxes do not depend on the image. `IoU_best` and `IoU_constant` compare the
    likeliest boxes with boxes that are the same in every image, see `_best_boxes.mean_overlaps`.
    """
    parts = [
      [fetch(x) for x in self._run(arrays, batch)]
      for batch in self._context.global_batches(self._most)
    ]
    score_NQ, class_NQ, box_NQ4, index_N = (np.concatenate(one) for one in zip(*parts, strict=True))
    order = np.argsort(index_N, kind="stable")
    order = order[index_N[order] >= 0]
    truth = self._context.task.boxes
    names = self._classes
    rows = []
    detections = []
    for row in order:
      n = int(index_N[row])
      best = np.argsort(-score_NQ[row], kind="stable")[: self._at_most]
      corners_Q4 = to_corners(box_NQ4[row, best].astype(np.float64)) * np.tile(truth.pixels[n], 2)
      known = class_NQ[row, best] < len(names)
      detections.append(
        (n, corners_Q4[known], class_NQ[row, best][known], score_NQ[row, best][known])
      )
      rows.append(self._row(*detections[-1], truth))
    scores = average_precision(truth, detections, names, self._at_most)
    other = (
      average_precision(truth, swap_detections(truth, detections), names, self._at_most)
      if len(rows) > 1
      else {}
    )
    scores |= {SWAPPED_METRIC: other["AP"]} if "AP" in other else {}
    scores |= _best_boxes.mean_overlaps(truth, detections, names)
    samples = [
      {
        "input": f"image {row['image']}",
        "target": _words(row["objects"]),
        "prediction": _words(row["detections"]),
      }
      for row in rows[:_SAMPLES]
    ]
    return EvalResult(scores | {"images": len(rows)}, samples, rows)

  def _row(
    self, n: int, corners_Q4: np.ndarray, class_Q: np.ndarray, score_Q: np.ndarray, truth
  ) -> dict:
    own = truth.slice_of_image(n)
    size_4 = np.tile(truth.pixels[n], 2)
    things = zip(truth.boxes[own], truth.labels[own])
    objects = [
      {"label": self._classes[label], "box": _rounded(box * size_4)} for box, label in things
    ]
    shown = describe_detections(corners_Q4.clip(0, size_4), class_Q, score_Q, self._classes)
    return {"image": n, "objects": objects, "detections": shown}


def average_precision(
  truth, detections: list[tuple], classes: tuple[str, ...], at_most: PositiveInt = 100
) -> dict[str, float]:
  """Compute the metrics of detections with pycocotools, in percent.

  Args:
    truth: a `data.images.boxes.Boxes`.
    detections: for each image to score, (its number, boxes [Q, 4] in pixels as ymin, xmin, ymax,
      xmax, classes [Q], scores [Q]).
    classes: the names of the classes.
  """
  from pycocotools.coco import COCO
  from pycocotools.cocoeval import COCOeval

  class Judge(COCOeval):
    """COCO's rules, with crowds that are difficult objects: a part of one does not lie in it."""

    def computeIoU(self, *place):
      own = [thing for thing in self._gts[place] if thing["difficult"]]
      for thing in own:
        thing["iscrowd"] = 0
      found = super().computeIoU(*place)
      for thing in own:
        thing["iscrowd"] = 1
      return found

  annotations = []
  results = []
  for n, corners_Q4, class_Q, score_Q in detections:
    own = truth.slice_of_image(n)
    size_4 = np.tile(truth.pixels[n], 2).astype(np.float64)
    of_each = (
      truth.boxes[own] * size_4,
      truth.labels[own],
      truth.areas[own],
      truth.are_learned[own],
      truth.difficult[own],
    )
    for box, label, area, learned, difficult in zip(*of_each, strict=True):
      about = {
        "id": len(annotations) + 1,
        "area": float(area),
        "iscrowd": int(not learned),
        "difficult": difficult,
      }
      annotations.append(about | {"image_id": n, "category_id": int(label), "bbox": _sides(box)})
    results += [
      {"image_id": n, "category_id": int(label), "bbox": _sides(box), "score": float(score)}
      for box, label, score in zip(corners_Q4, class_Q, score_Q)
    ]
  if not results or not annotations:
    return {"AP": 0.0} if annotations else {}
  known = COCO()
  known.dataset = {
    "images": [{"id": n} for n, *_ in detections],
    "annotations": annotations,
    "categories": [{"id": number, "name": name} for number, name in enumerate(classes)],
  }
  with contextlib.redirect_stdout(io.StringIO()):
    known.createIndex()
    judge = Judge(known, known.loadRes(results), "bbox")
    judge.params.maxDets = [1, 10, at_most]
    judge.evaluate()
    judge.accumulate()
  # [thresholds of IoU, recall, class, area, at most]; -1 where there is no object
  precision = judge.eval["precision"][..., -1]
  recall = judge.eval["recall"]
  places = [(slice(None), 0), (0, 0), (5, 0), *((slice(None), area) for area in (1, 2, 3))]
  chosen = {
    name: precision[iou, ..., area]
    for name, (iou, area) in zip(PRECISION_METRICS, places, strict=True)
  }
  places = [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (3, 2)]  # area, at most
  chosen |= {
    name: recall[..., area, most]
    for name, (area, most) in zip(recall_metrics(at_most), places, strict=True)
  }
  chosen |= {name: precision[:, :, number, 0] for number, name in enumerate(class_metrics(classes))}
  return {name: 100 * float(x[x > -1].mean()) for name, x in chosen.items() if (x > -1).any()}


def recall_metrics(at_most: int) -> tuple[str, ...]:
  """Return the names of the average recalls: of 1, 10 and `at_most` detections per image, and by
  size of object."""
  return (
    "AR_1",
    "AR_10",
    f"AR_{at_most}" if at_most not in (1, 10) else "AR",
    *(f"AR_{size}" for size in _SIZES),
  )


def class_metrics(classes: Sequence[str]) -> tuple[str, ...]:
  """Return the names of the classes' average precisions; the number of a class tells names apart
  that become one."""
  words = [re.sub(r"[^\w-]+", "_", name) for name in classes]
  return tuple(f"AP_of_{word}" + f"_{n}" * (words.count(word) > 1) for n, word in enumerate(words))


def swap_detections(truth, detections: list[tuple]) -> list[tuple]:
  """Give every image the detections of the next one, scaled to its own size; arguments as
  `average_precision`."""
  sizes = [np.tile(truth.pixels[n], 2).astype(np.float64) for n, *_ in detections]
  found = zip(
    detections, sizes, detections[1:] + detections[:1], sizes[1:] + sizes[:1], strict=True
  )
  return [
    (n, boxes / theirs * own, classes, scores)
    for (n, *_), own, (_, boxes, classes, scores), theirs in found
  ]


def top_detections(outputs: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Return (probability [B, Q], class [B, Q], box [B, Q, 4]) of each query's likeliest class except
  "no object"."""
  p_BQV = jax.nn.softmax(outputs["logits"])[..., :-1]
  return jnp.max(p_BQV, axis=-1), jnp.argmax(p_BQV, axis=-1), outputs["boxes"]


def to_corners(boxes_Q4: np.ndarray) -> np.ndarray:
  """Convert (centre x, centre y, width, height) to (ymin, xmin, ymax, xmax), beyond the image too,
  as DETR does."""
  x, y, w, h = np.moveaxis(boxes_Q4, -1, 0)
  return np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], axis=-1)


def describe_detections(
  corners_Q4: np.ndarray, class_Q: np.ndarray, score_Q: np.ndarray, names: Sequence[str]
) -> list[dict]:
  """Return the `label`, `score` and `box` (ymin, xmin, ymax, xmax in pixels) of each detection, as
  JSON values."""
  return [
    {"label": names[label], "score": round(float(score), 4), "box": _rounded(box)}
    for box, label, score in zip(corners_Q4, class_Q, score_Q)
  ]


def _sides(box_4: np.ndarray) -> list[float]:
  y0, x0, y1, x1 = (float(edge) for edge in box_4)
  return [x0, y0, x1 - x0, y1 - y0]


def _rounded(box_4: np.ndarray) -> list[float]:
  return [round(float(edge), 2) for edge in box_4]


def _words(found: list[dict]) -> str:
  shown = [one for one in found if one.get("score", 1.0) >= SHOWN_SCORE]
  return (
    "; ".join(
      f"{one['label']} at {', '.join(f'{edge:.0f}' for edge in one['box'])}" for one in shown
    )
    or "nothing"
  )
