"""ViT, as an image classifier or without a head."""

from t5x_like.errors import UserError
from t5x_like.interop import image_encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import vit

MODEL_TYPES = ("vit",)
MODELS = (vit.Model,)
CLASSIFIER = "ViTForImageClassification"
BODY = "ViTModel"


def read_config(fields: Fields, tensor_names: set[str]):
  head = image_encoders.read_head(
    fields, CLASSIFIER, BODY, image_encoders.POOLER in tensor_names and "dense"
  )
  return vit.Model, {
    "variant": image_encoders.read_variant(
      fields, vit.VARIANTS["vit-b16"], class_tokens=1, head=head
    )
  }


def write_config(model, model_type: str | None) -> dict:
  fields = image_encoders.write_head(model, "vit", CLASSIFIER, BODY, poolers=("none", "dense"))
  if model.variant.class_tokens != 1 or model.variant.registers:
    raise UserError(
      f"class_tokens is {model.variant.class_tokens}, registers {model.variant.registers}; vit has "
      "1 and 0"
    )
  return fields | image_encoders.write_config(model, "vit")


def map_tensors(mapping: TensorMapping) -> None:
  classifies = "head/out/kernel" in mapping.parameter_names
  prefix = "vit." if classifies else ""
  image_encoders.map_tensors(mapping, prefix, ("cls_token",))
  if classifies:
    mapping.linear("classifier", "head/out")
  image_encoders.map_pooler(mapping, prefix)
