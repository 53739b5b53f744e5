"""DeiT: distilled, with two classifiers, or with one that reads the class token."""

import functools

from t5x_like.interop import image_encoders
from t5x_like.interop.config_table import ModelType
from t5x_like.interop.encoders import Classes, EncoderTensors, Head
from t5x_like.interop.tensor_layouts import map_token
from t5x_like.interop.tensor_mapping import Layout
from t5x_like.models import deit

HEADS = (
  Head(
    "ForImageClassificationWithTeacher",
    "distillation",
    {"cls_classifier": "out", "distillation_classifier": "distilled"},
  ),
  image_encoders.CLASSIFIER,
  *image_encoders.BODIES,
)
TENSORS = {
  **image_encoders.TENSORS,
  "embeddings.distillation_token": Layout("tokens", functools.partial(map_token, number=1)),
}
TYPES = (
  ModelType(
    "deit",
    "",
    deit.Model,
    deit.VARIANTS["deit-b16"],
    (*image_encoders.VIT, Classes("DeiT", HEADS)),
    EncoderTensors("deit", HEADS, TENSORS),
    free=image_encoders.FREE,
  ),
)
