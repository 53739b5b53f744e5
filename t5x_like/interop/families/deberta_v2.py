"""DeBERTa v3, whose files have the type `deberta-v2`.

DeBERTa v2 with its convolution or unshared projections is not read.
"""

from typing import Any

from t5x_like.interop import encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import (
  Constant,
  Custom,
  Field,
  Ignored,
  ModelType,
  Required,
)
from t5x_like.interop.encoders import Classes, EncoderTensors, Head, SpecialTokens
from t5x_like.interop.families import bert
from t5x_like.interop.tensor_mapping import prefix_table
from t5x_like.models import deberta
from t5x_like.models.deberta import DebertaVariant

HEADS = (
  Head("ForMaskedLM", "mlm", bert.MLM),
  Head(
    "ForSequenceClassification",
    "classification",
    {"pooler.dense": "pooler/dense", "classifier": "out"},
    arguments={"activation": "gelu"},
  ),
  Head("ForTokenClassification", "tokens", {"classifier": "out"}),
  Head("ForQuestionAnswering", "spans", {"qa_outputs": "out"}),
  Head("Model", "none", {}),
)


class Mandatory(Constant):
  """A field that a config must have with one value, as the default of `transformers` is another.

  Args:
    name, value: see `Constant`.
    spellings: other values that mean the same.
  """

  def __init__(self, name: str, value: Any, *spellings: Any):
    super().__init__(name, value)
    self.spellings = spellings

  def read(self, fields: Fields) -> dict[str, Any]:
    fields.require(self.name, self.value, *self.spellings)
    fields.take(self.name)
    return {}


def _read_attention_scale(fields: Fields) -> dict[str, Any]:
  """Return the scale of the sum of three products: of contents, and of each with distances."""
  head_dim = fields.take("hidden_size") // fields.take("num_attention_heads")
  return {"design.attention_scale": (3 * head_dim) ** -0.5}


def _read_distance(fields: Fields) -> dict[str, Any]:
  positions = fields.take("max_position_embeddings", 512)
  distance = fields.take("max_relative_positions", -1)
  return {"max_distance": distance if distance > 0 else positions}


def _write_distance(variant: DebertaVariant) -> dict[str, Any]:
  return {
    "max_position_embeddings": variant.max_distance,
    "max_relative_positions": variant.max_distance,
  }


def _require_full_width(fields: Fields) -> dict[str, Any]:
  fields.require("embedding_size", fields.values.get("hidden_size"))
  return {}


DEBERTA = (
  *encoders.SIZES,
  Custom(_require_full_width),
  encoders.ACTIVATION,
  Field("position_buckets", "buckets"),
  Field("layer_norm_eps", "design.norm_epsilon", default=1e-7),
  Custom(_read_attention_scale),
  Custom(_read_distance, _write_distance),
  Mandatory("relative_attention", True),
  Mandatory("share_att_key", True),
  Mandatory("position_biased_input", False),
  Mandatory("norm_rel_ebd", "layer_norm"),
  Mandatory("pos_att_type", ["p2c", "c2p"], ["c2p", "p2c"], "p2c|c2p", "c2p|p2c"),
  Constant("type_vocab_size", 0),
  Required("conv_kernel_size", 0, None),
  Required("legacy", True),
  Required("pooler_hidden_act", "gelu"),
  Required("attention_head_size", None),
  SpecialTokens(deberta.TOKENS),
  Classes("DebertaV2", HEADS),
  encoders.DROPOUT_RATES,
  Ignored("pooler_dropout", "pooler_hidden_size", "cls_dropout"),
)
LAYER = {
  "attention.self.query_proj": "self_attention/layer/query",
  "attention.self.key_proj": "self_attention/layer/key",
  "attention.self.value_proj": "self_attention/layer/value",
  **encoders.LAYER_AFTER_QKV,
}
TENSORS = {
  **encoders.EMBEDDINGS,
  "encoder.rel_embeddings.weight": "encoder/distances",
  "encoder.LayerNorm": "encoder/distance_norm",
  **prefix_table("encoder.layer.{layer}.", "encoder/blocks/", LAYER),
}
FILES = encoders.FILES | {
  "ignored_suffixes": (
    *encoders.IGNORED_SUFFIXES,
    "position_embeddings.weight",
    "mask_predictions.dense.weight",
    "mask_predictions.dense.bias",
  )
}
TYPES = (
  ModelType(
    "deberta-v2",
    "",
    deberta.Model,
    deberta.VARIANTS["deberta-v3-base"],
    DEBERTA,
    EncoderTensors("deberta", HEADS, TENSORS),
    tied={
      "cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight",
      "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    **FILES,
  ),
)
