"""ALBERT."""

import dataclasses

from t5x_like.errors import UserError
from t5x_like.interop import encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.encoders import Head, nest_paths
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import albert

MODEL_TYPES = ("albert",)
MODELS = (albert.Model,)

MLM = {"predictions.dense": "dense", "predictions.LayerNorm": "norm", "predictions.bias": "lm/bias"}
POOLER = {"albert.pooler": "pooler/dense"}
ORDER = {"sop_classifier.classifier": "next_sentence"}
CLASSIFIER = {"classifier": "out"}
HEADS = (
  Head("ForPreTraining", "pretraining", nest_paths("mlm", MLM) | POOLER | ORDER),
  Head(
    "ForMaskedLM", "pretraining", nest_paths("mlm", MLM) | POOLER | ORDER
  ),  # as in the hub's files
  Head("ForMaskedLM", "mlm", MLM),
  Head("ForSequenceClassification", "classification", POOLER | CLASSIFIER),
  Head("ForMultipleChoice", "multiple_choice", POOLER | CLASSIFIER),
  Head("ForTokenClassification", "tokens", CLASSIFIER),
  Head("ForQuestionAnswering", "spans", {"qa_outputs": "out"}),
  Head("Model", "pooled", {"pooler": "pooler/dense"}),
  Head("Model", "none", {}),
)


def read_config(fields: Fields, tensor_names: set[str]):
  groups = fields.take("num_hidden_groups", 1)
  inner = fields.take("inner_group_num", 1)
  if groups * inner > len(tensor_names):
    raise fields.refusal(
      "inner_group_num", inner, f"{groups} groups of no more layers than the files have tensors"
    )
  fields.ignore(
    "classifier_dropout_prob",
    "down_scale_factor",
    "gap_size",
    "net_structure_type",
    "num_memory_blocks",
  )
  fields.ignore("layers_to_keep")
  activation = fields.choose("hidden_act", encoders.ACTIVATIONS, "gelu_new")
  table = fields.take("embedding_size", 128)
  base = albert.VARIANTS["albert-base"]
  variant = encoders.read_variant(
    fields, tensor_names, base, "Albert", HEADS, activation=activation
  )
  if table == variant.dims.embed:
    raise fields.refusal(
      "embedding_size", table, f"a table that is not as wide as the stack, {table}"
    )
  return albert.Model, {
    "variant": dataclasses.replace(variant, embed=table, groups=groups, inner=inner)
  }


def write_config(model, model_type: str | None) -> dict:
  if not model.variant.embed:
    raise UserError(
      f"embedding width {model.variant.dims.embed}: albert supports only a table of another width"
    )
  return encoders.write_config(model, "albert", "Albert", HEADS) | {
    "embedding_size": model.variant.embed,
    "num_hidden_groups": model.variant.groups,
    "inner_group_num": model.variant.inner,
    "bos_token_id": model.variant.tokens.start,
    "eos_token_id": model.variant.tokens.eos,
  }


def map_tensors(mapping: TensorMapping) -> None:
  body = encoders.map_embeddings_and_head(
    mapping, "albert", HEADS, "encoder.embedding_hidden_mapping_in"
  )
  names = ("query", "key", "value", "dense")
  attention = "encoder/blocks/self_attention"
  mlp = "encoder/blocks/mlp"
  inner = mapping.model.variant.inner
  for index in range(mapping.model.variant.groups * inner):
    hf_group = f"{body}encoder.albert_layer_groups.{index // inner}"
    hf_layer = f"{hf_group}.albert_layers.{index % inner}"
    mapping.attention(f"{hf_layer}.attention", f"{attention}/layer", index, names=names)
    mapping.norm(f"{hf_layer}.attention.LayerNorm", f"{attention}/out_norm", index)
    mapping.linear(f"{hf_layer}.ffn", f"{mlp}/layer/wi", index)
    mapping.linear(f"{hf_layer}.ffn_output", f"{mlp}/layer/wo", index)
    mapping.norm(f"{hf_layer}.full_layer_layer_norm", f"{mlp}/out_norm", index)
  mapping.tied = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
  }
