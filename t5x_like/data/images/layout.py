"""The features of images and the arguments of tasks on them, without TensorFlow."""

from collections.abc import Mapping
from typing import Any

from t5x_like import slots
from t5x_like.data import tasks
from t5x_like.data.features import Feature, Features
from t5x_like.resolution import Resolution, height_and_width


def describe(resolution: Resolution, channels: int, mixed: bool = False) -> Features:
  """Return the features of a labelled image.

  Args:
    resolution: the height and width of the image.
    channels: the number of its channels.
    mixed: whether mixup or CutMix may mix in a second image: adds `other_label` and `label_share`,
      the share of the first label.
  """
  features = {
    "image": Feature((*height_and_width(resolution), channels), "float32"),
    "label": Feature((), "int32"),
    "example_weights": Feature((), "float32"),
  }
  if mixed:
    features["other_label"] = Feature((), "int32")
    features["label_share"] = Feature((), "float32")
  return features


def fill_defaults(task: Mapping[str, Any]) -> dict[str, Any]:
  """Return a `config.task` with the task's defaults for the arguments that it leaves out."""
  arguments_class = slots.find("config.task.name", task["name"], tasks, "Arguments")
  return slots.defaults(arguments_class) | dict(task)
