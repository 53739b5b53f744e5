"""Top-1 and top-5 accuracy, shared by the evaluators that rank classes for each image."""

from collections.abc import Sequence

import numpy as np

from t5x_like.evals import EvalResult

TOP_K = 5  # the likeliest classes, which `top5` compares
_SAMPLES = 8


def top_metric_names(classes: Sequence[str]) -> tuple[str, ...]:
  """Return the names of the metrics of `score_top_classes`."""
  if len(classes) > TOP_K:
    return ("top1", "top5", "images")
  return ("top1", "images")


def score_top_classes(
  best_NK: np.ndarray, label_N: np.ndarray, index_N: np.ndarray, classes: Sequence[str]
) -> EvalResult:
  """Score the likeliest classes of images, best first; rows with index -1 are padding."""
  is_image_N = index_N >= 0
  best_NK = best_NK[is_image_N]
  label_N = label_N[is_image_N]
  index_N = index_N[is_image_N]
  right_NK = best_NK == label_N[:, None]
  scores = {"top1": 100 * float(right_NK[:, 0].mean())}
  if len(classes) > TOP_K:
    scores["top5"] = 100 * float(right_NK.any(axis=1).mean())

  def name(number: int) -> str:
    return classes[number] if number < len(classes) else f"class {number}"

  predictions = []
  for index, label, best in zip(index_N, label_N, best_NK[:, 0]):
    predictions.append({"input": f"image {index}", "target": name(label), "prediction": name(best)})
  return EvalResult(scores | {"images": len(predictions)}, predictions[:_SAMPLES], predictions)
