"""ViT, as an image classifier."""

from t5x_like.errors import UserError
from t5x_like.interop import images
from t5x_like.interop.fields import Fields
from t5x_like.interop.mapping import Mapping
from t5x_like.models import vit

MODEL_TYPES = ("vit",)
MODELS = (vit.Model,)


def build(fields: Fields, names: set[str]):
  fields.only("architectures", ["ViTForImageClassification"])
  head = {"name": "image_classification", "labels": images.labels_of(fields)}
  return vit.Model, {"variant": images.build(fields, vit.VARIANTS["vit-b16"], class_tokens=1, head=head)}


def config(model, model_type: str | None) -> dict:
  labels = classifier(model, "vit")
  if model.variant.class_tokens != 1:
    raise UserError(f"class_tokens is {model.variant.class_tokens}; vit has 1")
  return {"architectures": ["ViTForImageClassification"]} | images.config(model, "vit") | images.label_fields(labels)


def classifier(model, model_type: str) -> int:
  """Return the number of classes of a model that classifies its class token; raise UserError for another head."""
  head = model.variant.head if isinstance(model.variant.head, dict) else {"name": model.variant.head}
  plain = head["name"] == "image_classification" and head.get("pooling") in (None, "token")
  plain = plain and not head.get("hidden") and not head.get("norm")
  if not plain:
    raise UserError(f"the head {model.variant.head!r}: {model_type} has 'image_classification' of the class token")
  return head.get("labels", 1000)


def tensors(m: Mapping) -> None:
  images.tensors(m, "vit.", ("cls_token",))
  m.linear("classifier", "head/out")
  m.unread = ("vit.pooler.dense.weight", "vit.pooler.dense.bias")
