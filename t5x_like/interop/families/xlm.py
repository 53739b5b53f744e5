"""XLM, the encoder, with or without language embeddings."""

from typing import Any

from t5x_like.architectures.design import Variant
from t5x_like.interop import encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import (
  Choice,
  Constant,
  Custom,
  Field,
  Ignored,
  ModelType,
  Required,
)
from t5x_like.interop.encoders import Classes, EncoderTensors, Head, SpecialTokens
from t5x_like.interop.tensor_mapping import prefix_table
from t5x_like.models import xlm

HEADS = (
  Head("WithLMHeadModel", "linear_mlm", {"pred_layer.proj.bias": "lm/bias"}),
  Head("ForTokenClassification", "tokens", {"classifier": "out"}),
  Head("ForQuestionAnsweringSimple", "spans", {"qa_outputs": "out"}),
  Head("Model", "none", {}),
)


def _read_languages(fields: Fields) -> dict[str, Any]:
  """Return the number of languages with a vector of their own; a single one has none."""
  languages = fields.take("n_langs", 1)
  if languages == 1 or not fields.take("use_lang_emb", True):
    languages = 0
  fields.ignore("use_lang_emb")
  return {"types": languages}


def _write_languages(variant: Variant) -> dict[str, Any]:
  return {"n_langs": variant.types or 1, "use_lang_emb": variant.types > 0}


XLM = (
  Field("vocab_size", "vocab_size", default=30_145),
  Field("emb_dim", "dims.embed", default=2048),
  Field("n_layers", "dims.layers", default=12),
  Field("n_heads", "dims.heads", default=16),
  Custom(_read_languages, _write_languages),
  Choice("gelu_activation", "design.activation", {True: "gelu", False: "relu"}, default=True),
  encoders.LENGTH,
  Field("layer_norm_eps", "design.norm_epsilon", default=1e-12),
  SpecialTokens(xlm.TOKENS, "bos_token_id", "eos_token_id"),
  Classes("XLM", HEADS),
  Constant("tie_word_embeddings", True),
  Required("sinusoidal_embeddings", False),
  Required("causal", False),
  Required("asm", False),
  Required("is_encoder", True),
  Ignored("dropout", "attention_dropout", "embed_init_std", "init_std", "start_n_top", "end_n_top"),
  Ignored("share_inout", "unk_index", "mask_index", "bos_index", "eos_index", "pad_index"),
  Ignored("n_words", "lang_id", "id2lang", "lang2id", "max_vocab", "min_count", "same_enc_dec"),
)
LAYER = {
  "attentions.{layer}.q_lin": "self_attention/layer/query",
  "attentions.{layer}.k_lin": "self_attention/layer/key",
  "attentions.{layer}.v_lin": "self_attention/layer/value",
  "attentions.{layer}.out_lin": "self_attention/layer/out",
  "layer_norm1.{layer}": "self_attention/out_norm",
  "ffns.{layer}.lin1": "mlp/layer/wi",
  "ffns.{layer}.lin2": "mlp/layer/wo",
  "layer_norm2.{layer}": "mlp/out_norm",
}
TENSORS = {
  "embeddings": "embed",
  "position_embeddings": "inputs/position",
  "lang_embeddings": "inputs/types",
  "layer_norm_emb": "inputs/norm",
  **prefix_table("", "encoder/blocks/", LAYER),
}
FILES = encoders.FILES | {"ignored_suffixes": ("position_ids",)}
TYPES = (
  ModelType(
    "xlm",
    "",
    xlm.Model,
    xlm.VARIANTS["xlm-xnli15"],
    XLM,
    EncoderTensors("transformer", HEADS, TENSORS, unread=()),
    tied={"pred_layer.proj.weight": "transformer.embeddings.weight"},
    **FILES,
  ),
)
