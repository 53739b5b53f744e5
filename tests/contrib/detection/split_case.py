"""The case of detection in `tests/evals/test_splits.py`."""

import jax
import numpy as np

from t5x_like.contrib.detection.evals import detection
from tests.evals.splits import SIZES, SPLITS, Case, Training, source


def write_boxes(folder, split: str) -> None:
  """Write a VOC folder of a split's images, each with a box: in the middle for class "a"."""
  voc_folder = folder / f"voc_{split}"
  (voc_folder / "JPEGImages").mkdir(parents=True)
  (voc_folder / "Annotations").mkdir()
  for number, (_, label) in enumerate(SPLITS[split]):
    name = f"{split}{number}"
    image = (folder / split / label / f"{name}.png").read_bytes()
    (voc_folder / "JPEGImages" / f"{name}.png").write_bytes(image)
    low = 4 if label == "a" else 0
    high = low + 8
    box = f"<xmin>{low}</xmin><ymin>{low}</ymin><xmax>{high}</xmax><ymax>{high}</ymax>"
    (voc_folder / "Annotations" / f"{name}.xml").write_text(
      f"<annotation><object><name>thing</name><bndbox>{box}</bndbox></object></annotation>"
    )


def box_flags(folder) -> list[str]:
  for split in SPLITS:
    write_boxes(folder, split)
  backbone = '{"name": "resnet", "stem": 8, "widths": [16], "depths": [1]}'
  values = {
    "source": source(folder, "voc", "voc_{}"),
    "boxes": 2,
    "augmentations": "[]",
    "resolution": 16,
    "shortest": 16,
    "cache": f"{folder}/cache",
  }
  flags = [f"task.{key}={value}" for key, value in values.items()]
  return [*flags, f"model.backbone={backbone}", "model.queries=4", "model.labels=1"]


def expect_average_precision(run, split: str) -> set[float]:
  model, batch, task = run.open_split(split)
  detect = jax.jit(lambda model, batch: detection.top_detections(model.outputs(batch)))
  score_NQ, class_NQ, box_NQ4 = jax.device_get(detect(model, batch))
  detections = []
  for number in range(SIZES[split]):
    corners_Q4 = detection.to_corners(box_NQ4[number].astype(np.float64)) * 16
    detections.append((number, corners_Q4, class_NQ[number], score_NQ[number]))
  return {detection.average_precision(task.boxes, detections, ("thing",))["AP"]}


CASE = Case(
  Training("boxes", "configs/detr/base.py:debug", box_flags),
  "AP",
  expect_average_precision,
  count="images",
  has_one_score=True,
)
