"""DeiT: distilled, with two classifiers, or with one that reads the class token."""

from t5x_like.errors import UserError
from t5x_like.interop import image_encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import deit

MODEL_TYPES = ("deit",)
MODELS = (deit.Model,)
DISTILLED = "DeiTForImageClassificationWithTeacher"
PLAIN = "DeiTForImageClassification"
BODY = "DeiTModel"


def build(fields: Fields, names: set[str]):
  if (fields.values.get("architectures") or [DISTILLED])[0] == DISTILLED:
    head = {"name": "distillation", "labels": image_encoders.labels_of(fields)}
  else:
    head = image_encoders.head(fields, PLAIN, BODY, image_encoders.POOLER in names and "dense")
  return deit.Model, {
    "variant": image_encoders.build(fields, deit.VARIANTS["deit-b16"], class_tokens=2, head=head)
  }


def config(model, model_type: str | None) -> dict:
  head = (
    model.variant.head if isinstance(model.variant.head, dict) else {"name": model.variant.head}
  )
  if head["name"] == "distillation":
    fields = {"architectures": [DISTILLED]} | image_encoders.label_fields(head.get("labels", 1000))
  else:
    fields = image_encoders.head_fields(model, "deit", PLAIN, BODY, poolers=("none", "dense"))
  if model.variant.class_tokens != 2 or model.variant.registers:
    found = f"class_tokens is {model.variant.class_tokens}, registers {model.variant.registers}"
    raise UserError(f"{found}; deit has 2 and 0")
  return fields | image_encoders.config(model, "deit")


def tensors(m: TensorMapping) -> None:
  classifies = "head/out/kernel" in m.names
  prefix = "deit." if classifies else ""
  image_encoders.tensors(m, prefix, ("cls_token", "distillation_token"))
  if "head/distilled/kernel" in m.names:
    m.linear("cls_classifier", "head/out")
    m.linear("distillation_classifier", "head/distilled")
  elif classifies:
    m.linear("classifier", "head/out")
  image_encoders.pooler(m, prefix)
