"""COCO's average precision and recall (Lin et al. 2014), computed by pycocotools, in percent."""

import contextlib
import dataclasses
import importlib.util
import io
import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.contrib.detection.evals import _best_boxes
from t5x_like.errors import UserError
from t5x_like.evals import BaseEvaluator, EvalResult
from t5x_like.slots import PositiveInt

_SIZES = ("small", "medium", "large")
PRECISION_METRICS = ("AP", "AP50", "AP75", *(f"AP_{size}" for size in _SIZES))
SWAPPED_METRIC = "AP_swapped"
_SAMPLES = 8  # images shown in the log
SHOWN_SCORE = 0.5  # the lowest score of a detection that is shown
# (image number, corners [Q, 4] in pixels as ymin, xmin, ymax, xmax, classes [Q], scores [Q])
ImageDetections = tuple[int, np.ndarray, np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(BaseEvaluator):
  """An evaluator that detects the objects of every image once.

  Each query predicts its likeliest class of object.

  Attributes:
    max_examples: the number of images, from the first; None means all.
    at_most: the number of likeliest detections per image that count; COCO's is 100.

  Raises:
    UserError: the task has no boxes, the model is no detector, or pycocotools is not installed.
  """

  max_examples: PositiveInt | None = None
  at_most: PositiveInt = 100

  def __post_init__(self):
    task = self.context.task
    if getattr(task, "boxes", None) is None:
      features = ", ".join(task.features)
      raise UserError(
        f"evaluator detection: needs images with boxes, but task {task.name} makes {features}"
      )
    if "image_size" not in self.context.model.REQUIRED_FEATURES:
      raise UserError("evaluator detection: needs a detector, such as --config.model.name=detr")
    if importlib.util.find_spec("pycocotools") is None:
      raise UserError(
        "evaluator detection: pycocotools is not installed; pip install 't5x-like[detection]'"
      )

  def metric_names(self):
    return (
      *PRECISION_METRICS,
      *recall_metrics(self.at_most),
      *class_metrics(self.context.task.classes),
      SWAPPED_METRIC,
      *_best_boxes.OVERLAP_METRICS,
      "images",
    )

  def compute(self, model, batch):
    """Return the detections, as `top_detections`, and the indices of the examples."""
    return (*top_detections(model.outputs(batch)), batch["example_index"])

  def __call__(self, arrays):
    """Return the metrics and the number of `images`; metrics without any object are left out.

    `AP_swapped` scores the detections of every image on the next image, scaled to its size. If it
    is near `AP`, the boxes do not depend on the image. `IoU_best` and `IoU_constant` compare the
    likeliest boxes with boxes that are the same in every image, see `_best_boxes.mean_overlaps`.
    """
    batches = self.context.batches(self.max_examples)
    score_NQ, class_NQ, box_NQ4, index_N = self.context.run_batches(self.run, arrays, batches)
    order = np.argsort(index_N, kind="stable")
    order = order[index_N[order] >= 0]  # without padding
    truth = self.context.task.boxes
    names = self.context.task.classes
    rows = []
    detections = []
    for row in order:
      n = int(index_N[row])
      likeliest = np.argsort(-score_NQ[row], kind="stable")[: self.at_most]
      # A model may have more classes than the task.
      likeliest = likeliest[class_NQ[row, likeliest] < len(names)]
      corners_Q4 = to_corners(box_NQ4[row, likeliest].astype(np.float64))
      corners_Q4 = corners_Q4 * np.tile(truth.pixels[n], 2)
      detection = (n, corners_Q4, class_NQ[row, likeliest], score_NQ[row, likeliest])
      detections.append(detection)
      rows.append(describe_image(detection, truth, names))
    scores = average_precision(truth, detections, names, self.at_most)
    if len(rows) > 1:
      swapped = swap_detections(truth, detections)
      swapped_scores = average_precision(truth, swapped, names, self.at_most)
      if "AP" in swapped_scores:
        scores[SWAPPED_METRIC] = swapped_scores["AP"]
    scores |= _best_boxes.mean_overlaps(truth, detections, names)
    samples = []
    for row in rows[:_SAMPLES]:
      sample = {"input": f"image {row['image']}"}
      sample["target"] = _list_in_words(row["objects"])
      sample["prediction"] = _list_in_words(row["detections"])
      samples.append(sample)
    return EvalResult(scores | {"images": len(rows)}, samples, rows)


def describe_image(detection: ImageDetections, truth, names: Sequence[str]) -> dict:
  """Return the objects and detections of an image as JSON values, with boxes cut to the image.

  Args:
    detection: the detections of the image.
    truth, names: as `truth` and `classes` of `average_precision`.
  """
  image, corners_Q4, class_Q, score_Q = detection
  rows = truth.slice_of_image(image)
  size_4 = np.tile(truth.pixels[image], 2)
  objects = []
  for box, label in zip(truth.boxes[rows], truth.labels[rows]):
    objects.append({"label": names[label], "box": _round(box * size_4)})
  detections = describe_detections(corners_Q4.clip(0, size_4), class_Q, score_Q, names)
  return {"image": image, "objects": objects, "detections": detections}


def average_precision(
  truth, detections: list[ImageDetections], classes: tuple[str, ...], at_most: PositiveInt = 100
) -> dict[str, float]:
  """Compute the metrics of detections with pycocotools, in percent.

  Args:
    truth: a `data.boxes.Boxes`.
    detections: the detections of each image to score.
    classes: the names of the classes.
    at_most: the number of likeliest detections per image that count.
  """
  annotations = []
  results = []
  for n, corners_Q4, class_Q, score_Q in detections:
    annotations += _annotations(truth, n, len(annotations) + 1)
    for box, label, score in zip(corners_Q4, class_Q, score_Q):
      result = {"image_id": n, "category_id": int(label), "bbox": _origin_and_size(box)}
      results.append(result | {"score": float(score)})
  if not annotations:
    return {}
  if not results:
    return {"AP": 0.0}
  dataset = {
    "images": [{"id": n} for n, *_ in detections],
    "annotations": annotations,
    "categories": [{"id": number, "name": name} for number, name in enumerate(classes)],
  }
  # precision [IoU threshold, recall threshold, class, area, limit of detections] and recall [IoU
  # threshold, class, area, limit of detections]; -1 where there is no object
  precision, recall = _evaluate_coco(dataset, results, at_most)
  precision = precision[..., -1]  # the limit `at_most`
  columns = {"AP": precision[..., 0], "AP50": precision[0, ..., 0], "AP75": precision[5, ..., 0]}
  for area, size in enumerate(_SIZES, 1):
    columns[f"AP_{size}"] = precision[..., area]
  # The indices of area (0 is all, then `_SIZES`) and of limit (1, 10, `at_most`) of each recall.
  area_and_limit = [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (3, 2)]
  for name, (area, limit) in zip(recall_metrics(at_most), area_and_limit, strict=True):
    columns[name] = recall[..., area, limit]
  for number, name in enumerate(class_metrics(classes)):
    columns[name] = precision[:, :, number, 0]
  scores = {}
  for name, values in columns.items():
    valid_values = values[values > -1]
    if valid_values.size:
      scores[name] = 100 * float(valid_values.mean())
  return scores


def _annotations(truth, image: int, first_id: int) -> list[dict]:
  """Return COCO's annotations of the objects of an image."""
  rows = truth.slice_of_image(image)
  size_4 = np.tile(truth.pixels[image], 2).astype(np.float64)
  columns = (
    truth.boxes[rows] * size_4,
    truth.labels[rows],
    truth.areas[rows],
    truth.are_learned[rows],
    truth.difficult[rows],
  )
  annotations = []
  for box, label, area, learned, difficult in zip(*columns, strict=True):
    annotations.append(
      {
        "id": first_id + len(annotations),
        "area": float(area),
        "iscrowd": int(not learned),
        "difficult": difficult,
        "image_id": image,
        "category_id": int(label),
        "bbox": _origin_and_size(box),
      }
    )
  return annotations


def _evaluate_coco(
  dataset: dict, results: list[dict], at_most: int
) -> tuple[np.ndarray, np.ndarray]:
  """Return the precision and the recall of pycocotools."""
  from pycocotools.coco import COCO
  from pycocotools.cocoeval import COCOeval

  class Evaluation(COCOeval):
    """COCO's rules, except that a difficult object overlaps by IoU.

    Difficult objects are passed as crowds, so that detections of them are ignored. COCO divides the
    overlap with a crowd by the area of the detection alone, which is right only for real crowds.
    """

    def computeIoU(self, *key):
      difficult = [annotation for annotation in self._gts[key] if annotation["difficult"]]
      for annotation in difficult:
        annotation["iscrowd"] = 0
      overlaps = super().computeIoU(*key)
      for annotation in difficult:
        annotation["iscrowd"] = 1
      return overlaps

  coco = COCO()
  coco.dataset = dataset
  with contextlib.redirect_stdout(io.StringIO()):
    coco.createIndex()
    evaluation = Evaluation(coco, coco.loadRes(results), "bbox")
    evaluation.params.maxDets = [1, 10, at_most]
    evaluation.evaluate()
    evaluation.accumulate()
  return evaluation.eval["precision"], evaluation.eval["recall"]


def recall_metrics(at_most: int) -> tuple[str, ...]:
  """Return the names of the average recalls, by number of detections and by size of object."""
  return (
    "AR_1",
    "AR_10",
    f"AR_{at_most}" if at_most not in (1, 10) else "AR",
    *(f"AR_{size}" for size in _SIZES),
  )


def class_metrics(classes: Sequence[str]) -> tuple[str, ...]:
  """Return the names of the classes' average precisions; equal names get the class's number."""
  slugs = [re.sub(r"[^\w-]+", "_", name) for name in classes]
  names = []
  for number, slug in enumerate(slugs):
    suffix = f"_{number}" if slugs.count(slug) > 1 else ""
    names.append(f"AP_of_{slug}{suffix}")
  return tuple(names)


def swap_detections(truth, detections: list[ImageDetections]) -> list[ImageDetections]:
  """Return every image with the detections of the next image, scaled to its size.

  Args:
    truth, detections: as in `average_precision`.
  """
  sizes = [np.tile(truth.pixels[n], 2).astype(np.float64) for n, *_ in detections]
  swapped = []
  for i, (n, *_) in enumerate(detections):
    following = (i + 1) % len(detections)
    _, boxes, labels, scores = detections[following]
    swapped.append((n, boxes / sizes[following] * sizes[i], labels, scores))
  return swapped


def top_detections(outputs: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Return the likeliest class of each query, except "no object".

  Returns:
    (probability [B, Q], class [B, Q], box [B, Q, 4]).
  """
  p_BQV = jax.nn.softmax(outputs["logits"])[..., :-1]
  return jnp.max(p_BQV, axis=-1), jnp.argmax(p_BQV, axis=-1), outputs["boxes"]


def to_corners(boxes_Q4: np.ndarray) -> np.ndarray:
  """Convert (centre x, centre y, width, height) to (ymin, xmin, ymax, xmax).

  As in DETR, corners may lie outside of the image.
  """
  x, y, w, h = np.moveaxis(boxes_Q4, -1, 0)
  return np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], axis=-1)


def describe_detections(
  corners_Q4: np.ndarray, class_Q: np.ndarray, score_Q: np.ndarray, names: Sequence[str]
) -> list[dict]:
  """Return the detections of an image as JSON values.

  Each has a `label`, a `score` and a `box` (ymin, xmin, ymax, xmax in pixels).
  """
  return [
    {"label": names[label], "score": round(float(score), 4), "box": _round(box)}
    for box, label, score in zip(corners_Q4, class_Q, score_Q)
  ]


def _origin_and_size(box_4: np.ndarray) -> list[float]:
  y0, x0, y1, x1 = (float(edge) for edge in box_4)
  return [x0, y0, x1 - x0, y1 - y0]


def _round(box_4: np.ndarray) -> list[float]:
  return [round(float(edge), 2) for edge in box_4]


def _list_in_words(detections: list[dict]) -> str:
  """Return the labels and boxes of detections or objects, in words."""
  descriptions = []
  for detection in detections:
    if detection.get("score", 1.0) >= SHOWN_SCORE:
      box = ", ".join(f"{edge:.0f}" for edge in detection["box"])
      descriptions.append(f"{detection['label']} at {box}")
  return "; ".join(descriptions) or "nothing"
