"""DeiT: distilled, with two classifiers, or with one that reads the class token."""

from t5x_like.errors import UserError
from t5x_like.interop import images
from t5x_like.interop.families import vit
from t5x_like.interop.fields import Fields
from t5x_like.interop.mapping import Mapping
from t5x_like.models import deit

MODEL_TYPES = ("deit",)
MODELS = (deit.Model,)
DISTILLED, PLAIN = "DeiTForImageClassificationWithTeacher", "DeiTForImageClassification"
HEADS = {DISTILLED: "distillation", PLAIN: "image_classification"}


def build(fields: Fields, names: set[str]):
  found = (fields.values.get("architectures") or [DISTILLED])[0]
  if found not in HEADS:
    raise fields.refusal("architectures", found, " or ".join(HEADS))
  head = {"name": HEADS[found], "labels": images.labels_of(fields)}
  return deit.Model, {"variant": images.build(fields, deit.VARIANTS["deit-b16"], class_tokens=2, head=head)}


def config(model, model_type: str | None) -> dict:
  head = model.variant.head if isinstance(model.variant.head, dict) else {"name": model.variant.head}
  distilled = head["name"] == "distillation"
  labels = head.get("labels", 1000) if distilled else vit.classifier(model, "deit")
  if model.variant.class_tokens != 2:
    raise UserError(f"class_tokens is {model.variant.class_tokens}; deit has 2")
  fields = images.config(model, "deit") | images.label_fields(labels)
  return {"architectures": [DISTILLED if distilled else PLAIN]} | fields


def tensors(m: Mapping) -> None:
  images.tensors(m, "deit.", ("cls_token", "distillation_token"))
  if "head/distilled/kernel" in m.names:
    m.linear("cls_classifier", "head/out")
    m.linear("distillation_classifier", "head/distilled")
  else:
    m.linear("classifier", "head/out")
  m.unread = ("deit.pooler.dense.weight", "deit.pooler.dense.bias")
