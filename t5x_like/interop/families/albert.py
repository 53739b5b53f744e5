"""ALBERT."""

from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import Choice, Custom, Ignored, ModelType
from t5x_like.interop.encoders import Classes, EncoderTensors, Head, SpecialTokens, nest_paths
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import albert
from t5x_like.models.albert import AlbertVariant

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


def _read_groups(fields: Fields) -> dict[str, Any]:
  groups = fields.take("num_hidden_groups", 1)
  inner = fields.take("inner_group_num", 1)
  if fields.tensor_names and groups * inner > len(fields.tensor_names):
    raise fields.refusal(
      "inner_group_num", inner, f"{groups} groups of no more layers than the files have tensors"
    )
  return {"groups": groups, "inner": inner}


def _write_groups(variant: AlbertVariant) -> dict[str, Any]:
  return {"num_hidden_groups": variant.groups, "inner_group_num": variant.inner}


def _read_table_width(fields: Fields) -> dict[str, Any]:
  """Return the width of the token table, which is projected to the stack even if it is as wide."""
  width = fields.take("embedding_size", 128)
  if width == fields.take("hidden_size"):
    raise fields.refusal(
      "embedding_size", width, f"a table that is not as wide as the stack, {width}"
    )
  return {"embed": width}


def _write_table_width(variant: AlbertVariant) -> dict[str, Any]:
  if not variant.embed:
    raise UserError(
      f"embedding width {variant.dims.embed}: albert supports only a table of another width"
    )
  return {"embedding_size": variant.embed}


ALBERT = (
  *encoders.BODY,
  encoders.LENGTH,
  Choice("hidden_act", "design.activation", encoders.ACTIVATIONS, default="gelu_new"),
  Custom(_read_groups, _write_groups),
  Custom(_read_table_width, _write_table_width),
  SpecialTokens(albert.TOKENS, "bos_token_id", "eos_token_id"),
  Classes("Albert", HEADS),
  Ignored("classifier_dropout_prob", "down_scale_factor", "gap_size", "layers_to_keep"),
  Ignored("net_structure_type", "num_memory_blocks"),
)
EMBEDDINGS = {
  **encoders.EMBEDDINGS,
  "encoder.embedding_hidden_mapping_in": "inputs/project",
}
LAYER = {
  "attention.query": "self_attention/layer/query",
  "attention.key": "self_attention/layer/key",
  "attention.value": "self_attention/layer/value",
  "attention.dense": "self_attention/layer/out",
  "attention.LayerNorm": "self_attention/out_norm",
  "ffn": "mlp/layer/wi",
  "ffn_output": "mlp/layer/wo",
  "full_layer_layer_norm": "mlp/out_norm",
}
TENSORS = EncoderTensors("albert", HEADS, EMBEDDINGS)


def _map_tensors(mapping: TensorMapping) -> None:
  """Map the tensors, whose layers are numbered within groups."""
  TENSORS(mapping)
  body_prefix = TENSORS.body_prefix(mapping)
  inner = mapping.model.variant.inner
  for index in range(mapping.model.variant.groups * inner):
    hf_group = f"{body_prefix}encoder.albert_layer_groups.{index // inner}"
    for hf_name, path in LAYER.items():
      hf_module = f"{hf_group}.albert_layers.{index % inner}.{hf_name}"
      mapping.module(hf_module, f"encoder/blocks/{path}", index)


TYPES = (
  ModelType(
    "albert",
    "",
    albert.Model,
    albert.VARIANTS["albert-base"],
    ALBERT,
    _map_tensors,
    tied={
      "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
      "predictions.decoder.bias": "predictions.bias",
    },
    **encoders.FILES,
  ),
)
