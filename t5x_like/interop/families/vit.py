"""ViT, as an image classifier or without a head."""

from t5x_like.interop import image_encoders
from t5x_like.interop.config_table import ModelType
from t5x_like.interop.encoders import Classes, EncoderTensors
from t5x_like.models import vit

HEADS = (image_encoders.CLASSIFIER, *image_encoders.BODIES)
TYPES = (
  ModelType(
    "vit",
    "",
    vit.Model,
    vit.VARIANTS["vit-b16"],
    (*image_encoders.VIT, Classes("ViT", HEADS)),
    EncoderTensors("vit", HEADS, image_encoders.TENSORS),
    free=image_encoders.FREE,
  ),
)
