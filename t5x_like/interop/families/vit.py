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


def build(fields: Fields, names: set[str]):
  head = image_encoders.head(fields, CLASSIFIER, BODY, image_encoders.POOLER in names and "dense")
  return vit.Model, {
    "variant": image_encoders.build(fields, vit.VARIANTS["vit-b16"], class_tokens=1, head=head)
  }


def config(model, model_type: str | None) -> dict:
  fields = image_encoders.head_fields(model, "vit", CLASSIFIER, BODY, poolers=("none", "dense"))
  if model.variant.class_tokens != 1 or model.variant.registers:
    found = f"class_tokens is {model.variant.class_tokens}, registers {model.variant.registers}"
    raise UserError(f"{found}; vit has 1 and 0")
  return fields | image_encoders.config(model, "vit")


def tensors(m: TensorMapping) -> None:
  classifies = "head/out/kernel" in m.names
  prefix = "vit." if classifies else ""
  image_encoders.tensors(m, prefix, ("cls_token",))
  if classifies:
    m.linear("classifier", "head/out")
  image_encoders.pooler(m, prefix)
