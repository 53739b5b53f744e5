"""The features of labelled images, without TensorFlow."""

from t5x_like.data.features import Feature, Features
from t5x_like.resolution import Resolution, sides


def images(resolution: Resolution, channels: int, mixed: bool = False) -> Features:
  """Describe a labelled image; `mixed` adds the label and share of a second image mixed in."""
  described = {
    "image": Feature((*sides(resolution), channels), "float32"),
    "label": Feature((), "int32"),
    "example_weights": Feature((), "float32"),
  }
  both = {"other_label": Feature((), "int32"), "label_share": Feature((), "float32")}
  return described | (both if mixed else {})
