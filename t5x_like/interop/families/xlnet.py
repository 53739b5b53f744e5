"""XLNet, without the memory of earlier rows."""

import dataclasses
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
  WriteOnly,
)
from t5x_like.interop.encoders import Classes, EncoderTensors, Head
from t5x_like.interop.tensor_layouts import (
  map_separate_heads,
  map_separate_heads_out,
  map_with_leading_axes,
)
from t5x_like.interop.tensor_mapping import Layout, prefix_table
from t5x_like.models import xlnet

POOLED = {"sequence_summary.summary": "pooler/dense", "logits_proj": "out"}
HEADS = (
  Head("LMHeadModel", "lm", {"lm_loss.bias": "bias"}),
  Head("ForSequenceClassification", "classification", POOLED),
  Head("ForMultipleChoice", "multiple_choice", POOLED),
  Head("ForTokenClassification", "tokens", {"classifier": "out"}),
  Head("ForQuestionAnsweringSimple", "spans", {"qa_outputs": "out"}),
  Head("Model", "none", {}),
)


def _read_head_dim(fields: Fields) -> dict[str, Any]:
  """Require heads that share the width."""
  fields.require("d_head", fields.take("d_model", 1024) // fields.take("n_head", 16), None)
  return {}


def _write_head_dim(variant: Variant) -> dict[str, Any]:
  return {"d_head": variant.dims.head_dim}


def _read_special_tokens(fields: Fields) -> dict[str, Any]:
  """Return the ids of padding, <cls> and <sep>; `bos_token_id` and `eos_token_id` are not used."""
  tokens = xlnet.TOKENS
  pad = encoders.read_special_tokens(fields, tokens).pad
  start = fields.values.get("cls_token_id")
  if start is None:
    start = tokens.start
  eos = fields.values.get("sep_token_id")
  if eos is None:
    eos = tokens.eos
  return {"tokens": dataclasses.replace(tokens, pad=pad, start=start, eos=eos)}


def _write_special_tokens(variant: Variant) -> dict[str, Any]:
  tokens = variant.tokens
  values = {"pad_token_id": tokens.pad}
  if (tokens.start, tokens.eos) != (xlnet.TOKENS.start, xlnet.TOKENS.eos):
    values |= {"cls_token_id": tokens.start, "sep_token_id": tokens.eos}
  return values


XLNET = (
  Field("vocab_size", "vocab_size", default=32_000),
  Field("d_model", "dims.embed", default=1024),
  Field("n_layer", "dims.layers", default=24),
  Field("n_head", "dims.heads", default=16),
  Field("d_inner", "dims.mlp", default=4096),
  Custom(_read_head_dim, _write_head_dim),
  Choice("ff_activation", "design.activation", encoders.ACTIVATIONS, default="gelu"),
  Field("layer_norm_eps", "design.norm_epsilon", default=1e-12),
  encoders.INITIALIZER,
  Custom(_read_special_tokens, _write_special_tokens),
  WriteOnly("bos_token_id", 1),
  WriteOnly("eos_token_id", 2),
  WriteOnly("mem_len", None),
  Classes("XLNet", HEADS),
  Constant("tie_word_embeddings", True),
  Required("attn_type", "bi"),
  Required("bi_data", False),
  Required("clamp_len", -1),
  Required("same_length", False),
  Required("untie_r", True),
  Required("summary_type", "last"),
  Required("summary_use_proj", True),
  Required("summary_activation", "tanh"),
  Ignored("dropout", "reuse_len", "use_mems_eval", "use_mems_train", "start_n_top", "end_n_top"),
)
ATTENTION = {
  "q": Layout("query/kernel", map_separate_heads),
  "k": Layout("key/kernel", map_separate_heads),
  "v": Layout("value/kernel", map_separate_heads),
  "r": Layout("relative/kernel", map_separate_heads),
  "o": Layout("out/kernel", map_separate_heads_out),
  "r_w_bias": Layout("content_bias", map_separate_heads),
  "r_r_bias": Layout("position_bias", map_separate_heads),
  "r_s_bias": Layout("type_bias", map_separate_heads),
  "seg_embed": Layout("types", map_separate_heads),
}
LAYER = {
  **prefix_table("rel_attn.", "self_attention/layer/", ATTENTION),
  "rel_attn.layer_norm": "self_attention/out_norm",
  "ff.layer_norm": "mlp/out_norm",
  "ff.layer_1": "mlp/layer/wi",
  "ff.layer_2": "mlp/layer/wo",
}
TENSORS = {
  "word_embedding": "embed",
  "mask_emb": Layout("unknown", map_with_leading_axes),
  **prefix_table("layer.{layer}.", "encoder/blocks/", LAYER),
}
TYPES = (
  ModelType(
    "xlnet",
    "",
    xlnet.Model,
    xlnet.VARIANTS["xlnet-base"],
    XLNET,
    EncoderTensors("transformer", HEADS, TENSORS, unread=()),
    tied={"lm_loss.weight": "transformer.word_embedding.weight"},
    body_prefix=None,
    free=("types",),  # types have no vectors of their own
  ),
)
