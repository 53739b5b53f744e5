"""RoBERTa and XLM-RoBERTa.

In training, their classification head applies dropout twice; ours once, after its first layer.
"""

from typing import Any

from t5x_like.architectures.design import Variant
from t5x_like.errors import UserError
from t5x_like.interop import encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import Custom, ModelType
from t5x_like.interop.encoders import Classes, EncoderTensors, Head, SpecialTokens
from t5x_like.interop.variant_paths import get_attribute
from t5x_like.models import roberta

HEADS = (
  Head(
    "ForMaskedLM",
    "mlm",
    {"lm_head.dense": "dense", "lm_head.layer_norm": "norm", "lm_head.bias": "lm/bias"},
  ),
  Head(
    "ForSequenceClassification",
    "classification",
    {"classifier.dense": "pooler/dense", "classifier.out_proj": "out"},
  ),
  Head(
    "ForMultipleChoice",
    "multiple_choice",
    {"roberta.pooler.dense": "pooler/dense", "classifier": "out"},
  ),
  Head("ForTokenClassification", "tokens", {"classifier": "out"}),
  Head("ForQuestionAnswering", "spans", {"qa_outputs": "out"}),
  Head("Model", "pooled", {"pooler.dense": "pooler/dense"}),
  Head("Model", "none", {}),
)


def _read_positions(fields: Fields) -> dict[str, Any]:
  """Return the positions, whose rows count from the id of padding, as in fairseq."""
  offset = fields.take("pad_token_id") + 1
  length = fields.take("max_position_embeddings", 512) - offset
  position = {"name": "learned", "length": length}
  if offset:
    position["offset"] = offset
  return {"design.position": position}


def _write_positions(variant: Variant) -> dict[str, Any]:
  if variant.tokens.pad is None:
    raise UserError("tokens.pad is None, from which positions are counted; name a padding id")
  length = get_attribute(variant, "design.position.length")
  return {"max_position_embeddings": length + variant.tokens.pad + 1}


ROBERTA = (
  *encoders.BODY,
  Custom(_read_positions, _write_positions),
  encoders.EXACT_GELU,
  SpecialTokens(roberta.TOKENS, "bos_token_id", "eos_token_id"),
)


def _model_type(name: str, prefix: str) -> ModelType:
  """Return a type, with the prefix of its class names."""
  return ModelType(
    name,
    "",
    roberta.Model,
    roberta.VARIANTS["roberta-base"],
    (*ROBERTA, Classes(prefix, HEADS)),
    EncoderTensors("roberta", HEADS, encoders.TENSORS),
    tied={
      "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
      "lm_head.decoder.bias": "lm_head.bias",
    },
    **encoders.FILES,
  )


TYPES = (_model_type("roberta", "Roberta"), _model_type("xlm-roberta", "XLMRoberta"))
