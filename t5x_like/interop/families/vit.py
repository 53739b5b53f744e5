"""ViT, as an image classifier or without a head."""

from t5x_like.errors import UserError
from t5x_like.interop import images
from t5x_like.interop.fields import Fields
from t5x_like.interop.mapping import Mapping
from t5x_like.models import vit

MODEL_TYPES = ("vit",)
MODELS = (vit.Model,)
CLASSIFIER = "ViTForImageClassification"
BODY = "ViTModel"


def build(fields: Fields, names: set[str]):
  head = images.head(fields, CLASSIFIER, BODY, images.POOLER in names and "dense")
  return vit.Model, {
    "variant": images.build(fields, vit.VARIANTS["vit-b16"], class_tokens=1, head=head)
  }


def config(model, model_type: str | None) -> dict:
  fields = images.head_fields(model, "vit", CLASSIFIER, BODY, poolers=("none", "dense"))
  if model.variant.class_tokens != 1 or model.variant.registers:
    found = f"class_tokens is {model.variant.class_tokens}, registers {model.variant.registers}"
    raise UserError(f"{found}; vit has 1 and 0")
  return fields | images.config(model, "vit")


def tensors(m: Mapping) -> None:
  classifies = "head/out/kernel" in m.names
  prefix = "vit." if classifies else ""
  images.tensors(m, prefix, ("cls_token",))
  if classifies:
    m.linear("classifier", "head/out")
  images.pooler(m, prefix)
