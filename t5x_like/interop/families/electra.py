"""ELECTRA: generators are `ElectraForMaskedLM`; all other classes are discriminators.

A joint `electra.Model` is saved as its two networks: `generator, discriminator = model.networks()`.
"""

import dataclasses

from t5x_like.interop import encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.encoders import Head
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import electra

MODEL_TYPES = ("electra",)
MODELS = (electra.Discriminator, electra.Generator)

HEADS = (
  Head(
    "ForPreTraining",
    "discriminator",
    {
      "discriminator_predictions.dense": "dense",
      "discriminator_predictions.dense_prediction": "out",
    },
  ),
  Head(
    "ForMaskedLM",
    "mlm",
    {
      "generator_predictions.dense": "dense",
      "generator_predictions.LayerNorm": "norm",
      "generator_lm_head.bias": "lm/bias",
    },
  ),
  Head(
    "ForSequenceClassification",
    "classification",
    {"classifier.dense": "pooler/dense", "classifier.out_proj": "out"},
    activation="gelu",
  ),
  Head(
    "ForMultipleChoice",
    "multiple_choice",
    {"sequence_summary.summary": "pooler/dense", "classifier": "out"},
    activation="gelu",
  ),
  Head("ForTokenClassification", "tokens", {"classifier": "out"}),
  Head("ForQuestionAnswering", "spans", {"qa_outputs": "out"}),
  Head("Model", "none", {}),
)


def read_config(fields: Fields, tensor_names: set[str]):
  fields.require("summary_type", "first")
  fields.require("summary_use_proj", True)
  fields.require("summary_activation", "gelu")
  # some of the heads support no other
  activation = fields.choose("hidden_act", {"gelu": "gelu"}, "gelu")
  table = fields.take("embedding_size", 128)
  base = electra.VARIANTS["electra-base"]
  variant = encoders.read_variant(
    fields, tensor_names, base, "Electra", HEADS, activation=activation
  )
  variant = dataclasses.replace(variant, embed=None if table == variant.dims.embed else table)
  model_class = electra.Generator if variant.head == "mlm" else electra.Discriminator
  return model_class, {"variant": variant}


def write_config(model, model_type: str | None) -> dict:
  values = encoders.write_config(model, "electra", "Electra", HEADS, activation="gelu")
  return values | {
    "embedding_size": model.variant.embed or model.variant.dims.embed,
    "summary_type": "first",
    "summary_use_proj": True,
    "summary_activation": "gelu",
  }


def map_tensors(mapping: TensorMapping) -> None:
  encoders.map_tensors(mapping, "electra", HEADS)
  mapping.tied = {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"}
