"""DeiT: distilled, with two classifiers, or with one that reads the class token."""

from t5x_like.errors import UserError
from t5x_like.interop import image_encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.encoders import label_fields
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import deit

MODEL_TYPES = ("deit",)
MODELS = (deit.Model,)
DISTILLED = "DeiTForImageClassificationWithTeacher"
PLAIN = "DeiTForImageClassification"
BODY = "DeiTModel"


def read_config(fields: Fields, tensor_names: set[str]):
  if (fields.values.get("architectures") or [DISTILLED])[0] == DISTILLED:
    head = {"name": "distillation", "labels": image_encoders.count_labels(fields)}
  else:
    head = image_encoders.read_head(
      fields, PLAIN, BODY, image_encoders.POOLER in tensor_names and "dense"
    )
  return deit.Model, {
    "variant": image_encoders.read_variant(
      fields, deit.VARIANTS["deit-b16"], class_tokens=2, head=head
    )
  }


def write_config(model, model_type: str | None) -> dict:
  head = model.variant.head
  if not isinstance(head, dict):
    head = {"name": head}
  if head["name"] == "distillation":
    fields = {"architectures": [DISTILLED]} | label_fields(head.get("labels", 1000))
  else:
    fields = image_encoders.write_head(model, "deit", PLAIN, BODY, poolers=("none", "dense"))
  if model.variant.class_tokens != 2 or model.variant.registers:
    raise UserError(
      f"class_tokens is {model.variant.class_tokens}, registers {model.variant.registers}; deit "
      "has 2 and 0"
    )
  return fields | image_encoders.write_config(model, "deit")


def map_tensors(mapping: TensorMapping) -> None:
  classifies = "head/out/kernel" in mapping.parameter_names
  prefix = "deit." if classifies else ""
  image_encoders.map_tensors(mapping, prefix, ("cls_token", "distillation_token"))
  if "head/distilled/kernel" in mapping.parameter_names:
    mapping.linear("cls_classifier", "head/out")
    mapping.linear("distillation_classifier", "head/distilled")
  elif classifies:
    mapping.linear("classifier", "head/out")
  image_encoders.map_pooler(mapping, prefix)
