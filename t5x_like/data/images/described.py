"""The features of images and the arguments of tasks on them, without TensorFlow."""

from collections.abc import Mapping
from typing import Any

from t5x_like import slots
from t5x_like.data import tasks
from t5x_like.data.features import Feature, Features
from t5x_like.resolution import Resolution, height_and_width


def images(resolution: Resolution, channels: int, mixed: bool = False) -> Features:
  """Describe a labelled image; `mixed` adds the label and share of a second image mixed in."""
  described = {
    "image": Feature((*height_and_width(resolution), channels), "float32"),
    "label": Feature((), "int32"),
    "example_weights": Feature((), "float32"),
  }
  both = {"other_label": Feature((), "int32"), "label_share": Feature((), "float32")}
  return described | (both if mixed else {})


def arguments(task: Mapping[str, Any]) -> dict[str, Any]:
  """Return a `config.task` with the defaults of the task in place of the arguments that it leaves
  out."""
  return slots.defaults(slots.find("config.task.name", task["name"], tasks, "task")) | dict(task)
