"""BART, mBART and Marian, whose files have the same layout."""

from typing import Any

from t5x_like.architectures.design import Tokens, Variant
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import (
  Choice,
  Custom,
  Entry,
  Field,
  HasTensor,
  Ignored,
  ModelType,
  Required,
  WriteOnly,
)
from t5x_like.interop.families import opt
from t5x_like.interop.tensor_mapping import Layout, TensorMapping, prefix_table
from t5x_like.models import bart, transformer

ACTIVATIONS = {
  "gelu": "gelu",
  "relu": "relu",
  "silu": "silu",
  "swish": "silu",
  "gelu_new": "gelu_tanh",
  "tanh": "tanh",
}


class SpecialTokens(Entry):
  """The ids of padding, end and start; the decoder starts with the end by default."""

  def __init__(self, pad: int, eos: int, start: int | None):
    self.defaults = (pad, eos, start)

  def read(self, fields: Fields) -> dict[str, Any]:
    pad, eos, start = self.defaults
    pad = fields.take("pad_token_id", pad)
    eos = fields.take("eos_token_id", eos)
    if isinstance(eos, list):
      eos = eos[0]
    start = fields.values.get("decoder_start_token_id", start)
    return {"tokens": Tokens(pad, eos if start is None else start, eos)}

  def write(self, variant: Variant) -> dict[str, Any]:
    tokens = variant.tokens
    return {
      "pad_token_id": tokens.pad,
      "bos_token_id": 0,
      "eos_token_id": tokens.eos,
      "decoder_start_token_id": tokens.start,
    }


def _require_consistent_sizes(fields: Fields) -> dict[str, Any]:
  fields.require("num_hidden_layers", fields.values.get("encoder_layers"))
  fields.require("decoder_vocab_size", fields.values.get("vocab_size"))
  width = fields.take("d_model")
  for name in ("encoder_attention_heads", "decoder_attention_heads"):
    heads = fields.values.get(name)
    if heads and width % heads:
      raise fields.refusal(name, heads, f"a divisor of d_model, {width}")
  return {}


COMMON = (
  WriteOnly("is_encoder_decoder", True),
  Field("vocab_size", "vocab_size"),
  Field("d_model", "dims.embed"),
  Field("encoder_layers", "dims.layers"),
  Field("encoder_attention_heads", "dims.heads"),
  Field("encoder_ffn_dim", "dims.mlp"),
  Field("decoder_layers", "decoder_layers", default=None),
  Field("decoder_attention_heads", "decoder_heads", default=None),
  Field("decoder_ffn_dim", "decoder_mlp", default=None),
  Choice("activation_function", "design.activation", ACTIVATIONS, default="gelu"),
  Field("scale_embedding", "design.embed_scale", default=False),
  HasTensor("final_logits_bias", "design.logits_bias"),
  Custom(_require_consistent_sizes),
  Required("share_encoder_decoder_embeddings", True),
  Required("add_bias_logits", False),
  Required("do_blenderbot_90_layernorm", False),
  Required("tie_word_embeddings", True),
  Ignored("dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop"),
  Ignored("decoder_layerdrop", "classif_dropout", "force_bos_token_to_be_generated"),
  Ignored("extra_pos_embeddings", "replacing_rate"),  # which nothing reads
  Ignored("student_decoder_layers", "student_encoder_layers"),
)


class ForcedEnd(Entry):
  """The end that `generate` forces at the greatest length: the special id."""

  def write(self, variant: Variant) -> dict[str, Any]:
    return {"forced_eos_token_id": variant.tokens.eos}


def _layout(*, pre_norm: bool, embed_norm: bool, fixed_positions: bool) -> tuple[Entry, ...]:
  """Return the fields that state the layout of a type, which all its published models share."""
  return (
    Required("normalize_before", pre_norm),
    Required("add_final_layer_norm", pre_norm),
    Required("normalize_embedding", embed_norm),
    Required("static_position_embeddings", fixed_positions),
  )


LENGTH = Field("max_position_embeddings", "design.position.length", default=1024)
TOKENS = SpecialTokens(pad=1, eos=2, start=None)
BART = (
  *COMMON,
  LENGTH,
  TOKENS,
  ForcedEnd(),
  *_layout(pre_norm=False, embed_norm=True, fixed_positions=False),
)
MBART = (
  *COMMON,
  LENGTH,
  TOKENS,
  ForcedEnd(),
  *_layout(pre_norm=True, embed_norm=True, fixed_positions=False),
)
MARIAN = (
  *COMMON,
  WriteOnly("max_position_embeddings", 1024),
  SpecialTokens(pad=58_100, eos=0, start=58_100),
  *_layout(pre_norm=False, embed_norm=False, fixed_positions=True),
)


def _map_output_bias(mapping: TensorMapping, hf_name: str, path: str) -> None:
  mapping.fuse(hf_name, [path], split=lambda x: [x[0]], join=lambda arrays: arrays[0][None])


CROSS_ATTENTION = {
  "encoder_attn_layer_norm": ("cross_attention/in_norm", "cross_attention/out_norm"),
  "encoder_attn.q_proj": "cross_attention/layer/query",
  "encoder_attn.k_proj": "cross_attention/layer/key",
  "encoder_attn.v_proj": "cross_attention/layer/value",
  "encoder_attn.out_proj": "cross_attention/layer/out",
}


def _stack_tensors(side: str, layer: dict) -> dict:
  """Return the tensors of a stack, "encoder" or "decoder"."""
  return {
    f"model.{side}.embed_positions": f"{side}_inputs/position",
    f"model.{side}.layernorm_embedding": f"{side}_inputs/norm",
    f"model.{side}.layer_norm": f"{side}/final_norm",
    **prefix_table(f"model.{side}.layers.{{layer}}.", f"{side}/blocks/", layer),
  }


TENSORS = dict(
  tensors={
    "model.shared": "embed",
    "final_logits_bias": Layout("head/bias", _map_output_bias),
    **_stack_tensors("encoder", opt.LAYER),
    **_stack_tensors("decoder", opt.LAYER | CROSS_ATTENTION),
  },
  tied=dict.fromkeys(
    ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
    "model.shared.weight",
  ),
  body_prefix="model.",
)
_IGNORED = ("final_logits_bias",)
_SINES = ("embed_positions.weight",)

TYPES = (
  ModelType(
    "bart",
    "BartForConditionalGeneration",
    bart.Model,
    bart.BART,
    BART,
    ignored_suffixes=_IGNORED,
    **TENSORS,
  ),
  ModelType(
    "mbart",
    "MBartForConditionalGeneration",
    bart.Model,
    bart.MBART,
    MBART,
    ignored_suffixes=_IGNORED,
    **TENSORS,
  ),
  ModelType(
    "marian",
    "MarianMTModel",
    transformer.Model,
    transformer.MARIAN,
    MARIAN,
    ignored_suffixes=_IGNORED + _SINES,
    **TENSORS,
  ),
)
