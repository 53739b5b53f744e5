"""Predictions for images: the objects in them, likeliest first."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from t5x_like.contrib.detection.evals.detection import (
  SHOWN_SCORE,
  describe_detections,
  to_corners,
  top_detections,
)
from t5x_like.data.images import layout, pictures
from t5x_like.inference import images


class ObjectDetection(images.ImagePredictor):
  """A predictor that detects the objects in each image, resized as in evaluation.

  It returns the objects with a score of at least 0.5 or, with `--top_k`, that many of the
  likeliest.
  """

  def __init__(self, model, vocabulary, task: Mapping[str, Any], flags: dict[str, Any]):
    self._top_k = images.read_top_k(flags, "finds objects in images", "objects", 0)
    self.channels = model.variant.channels
    task = layout.fill_defaults(task)
    self._longest = task["resolution"]
    self._shortest = task["shortest"]
    self._normalise = images.normalisation(task)
    self._names = images.class_names(vocabulary, model.variant.labels)

  def features(self, image_YXC: np.ndarray) -> dict[str, np.ndarray]:
    resized_YXC = self._normalise(pictures.resize_sides(image_YXC, self._shortest, self._longest))
    height, width = resized_YXC.shape[:2]
    padded = np.zeros((self._longest, self._longest, self.channels), np.float32)
    padded[:height, :width] = resized_YXC
    return {"image": padded, "image_size": np.array([height, width], np.int32)}

  def compute(self, model, batch):
    return top_detections(model.outputs(batch))

  def answer(
    self, size, score_Q: np.ndarray, class_Q: np.ndarray, box_Q4: np.ndarray
  ) -> dict[str, Any]:
    """Return `detections`, each with `label`, `score` and `box`.

    A box is ymin, xmin, ymax, xmax in pixels of the file.
    """
    chosen = np.argsort(-score_Q, kind="stable")
    if self._top_k:
      chosen = chosen[: self._top_k]
    else:
      chosen = chosen[score_Q[chosen] >= SHOWN_SCORE]
    boxes = to_corners(box_Q4[chosen].astype(np.float64)).clip(0.0, 1.0) * np.tile(size, 2)
    return {"detections": describe_detections(boxes, class_Q[chosen], score_Q[chosen], self._names)}
