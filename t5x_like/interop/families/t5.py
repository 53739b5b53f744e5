"""T5 1.0 and 1.1, mT5, umT5 and ByT5."""

import dataclasses
from typing import Any

from t5x_like.architectures.design import Tokens, Variant
from t5x_like.errors import UserError
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.config_table import Custom, Field, HasTensor, Ignored, ModelType, WriteOnly
from t5x_like.interop.tensor_mapping import Layout, TensorMapping, prefix_table
from t5x_like.models import t5

ACTIVATIONS = {
  "relu": "relu",
  "gated-gelu": "geglu_tanh",
  "gated-silu": "swiglu",
  "gelu": "gelu",
  "gated-relu": "reglu",
  "gated-gelu_new": "geglu_tanh",
  "gated-swish": "swiglu",
  "silu": "silu",
  "swish": "silu",
  "gelu_new": "gelu_tanh",
}


def _read_activation(fields: Fields) -> dict[str, Any]:
  default = "relu" if fields.values["model_type"] == "t5" else "gated-gelu"
  projection = fields.take("feed_forward_proj", default)
  activation = fields.choose("feed_forward_proj", ACTIVATIONS, projection)
  if projection == "gated-gelu":
    fields.require("dense_act_fn", "gelu_new", "gelu_pytorch_tanh")
  else:
    fields.require("dense_act_fn", projection.removeprefix("gated-"))
  fields.require("is_gated_act", projection.startswith("gated-"))
  return {"design.activation": activation}


def _write_activation(variant: Variant) -> dict[str, Any]:
  activation = variant.design.activation
  if activation not in ACTIVATIONS.values():
    choices = " or ".join(map(repr, dict.fromkeys(ACTIVATIONS.values())))
    raise UserError(f"design.activation is {activation!r}; this model type supports only {choices}")
  return {"feed_forward_proj": find_key(ACTIVATIONS, activation)}


def _read_scale(fields: Fields) -> dict[str, Any]:
  """Read whether the decoder's output is scaled before the logits.

  Transformers 5 writes it to the config of a T5 model. In older files and for umT5, tied embeddings
  imply it. mT5 never scales.
  """
  tied = fields.take("tie_word_embeddings", True)
  is_scaled = fields.take("scale_decoder_outputs", tied)
  return {"design.logits_scale": is_scaled and fields.values["model_type"] != "mt5"}


def _write_scale(variant: Variant) -> dict[str, Any]:
  # In this family, Transformers scales the output if `tie_word_embeddings` is set.
  return {"tie_word_embeddings": variant.design.logits_scale}


def _write_t5_scale(variant: Variant) -> dict[str, Any]:
  return _write_scale(variant) | {"scale_decoder_outputs": variant.design.logits_scale}


def _read_special_tokens(fields: Fields) -> dict[str, Any]:
  """Read the ids of padding, start and EOS.

  The decoder starts with padding by default. Of several EOS ids, the first is used.
  """
  pad = fields.take("pad_token_id", 0)
  start = fields.values.get("decoder_start_token_id") or pad
  eos = fields.take("eos_token_id", 1)
  if isinstance(eos, list):
    eos = eos[0]
  return {"tokens": Tokens(pad, start, eos)}


def _write_special_tokens(variant: Variant) -> dict[str, Any]:
  tokens = variant.tokens
  return {
    "pad_token_id": tokens.pad,
    "eos_token_id": tokens.eos,
    "decoder_start_token_id": tokens.start,
  }


# Switch Transformers have these entries too.
COMMON_ENTRIES = (
  WriteOnly("is_encoder_decoder", True),
  Field("vocab_size", "vocab_size"),
  Field("d_model", "dims.embed"),
  Field("d_kv", "dims.head_dim"),
  Field("d_ff", "dims.mlp"),
  Field("num_layers", "dims.layers"),
  Field("num_decoder_layers", "decoder_layers", default=None),
  Field("num_heads", "dims.heads"),
  Field("relative_attention_num_buckets", "design.position.buckets", default=32),
  Field("relative_attention_max_distance", "design.position.max_distance", default=128),
  Field("layer_norm_epsilon", "design.norm_epsilon", default=1e-6),
  HasTensor("lm_head.weight", "design.tied", present=False),
  Custom(_read_special_tokens, _write_special_tokens),
  Ignored("dropout_rate", "n_positions"),
)
_SHARED_ENTRIES = (*COMMON_ENTRIES, Custom(_read_activation, _write_activation))
ENTRIES = (*_SHARED_ENTRIES, Custom(_read_scale, _write_scale))
T5_ENTRIES = (*_SHARED_ENTRIES, Custom(_read_scale, _write_t5_scale))

SELF_ATTENTION = {
  "layer.0.layer_norm": "self_attention/in_norm",
  "layer.0.SelfAttention.q": "self_attention/layer/query",
  "layer.0.SelfAttention.k": "self_attention/layer/key",
  "layer.0.SelfAttention.v": "self_attention/layer/value",
  "layer.0.SelfAttention.o": "self_attention/layer/out",
  "layer.0.SelfAttention.relative_attention_bias": "self_attention/layer/position",
}
CROSS_ATTENTION = {
  "layer.1.layer_norm": "cross_attention/in_norm",
  "layer.1.EncDecAttention.q": "cross_attention/layer/query",
  "layer.1.EncDecAttention.k": "cross_attention/layer/key",
  "layer.1.EncDecAttention.v": "cross_attention/layer/value",
  "layer.1.EncDecAttention.o": "cross_attention/layer/out",
}


def map_wi(mapping: TensorMapping, hf_name: str, path: str, *index: int) -> None:
  """Map the first layer of the MLP: `wi` in Transformers, or `wi_1` if the MLP is gated."""
  has_gate = path.replace("/wi", "/gate/kernel") in mapping.parameter_names
  mapping.linear(f"{hf_name}_1" if has_gate else hf_name, path, *index)


MLP = {
  "layer_norm": "mlp/in_norm",
  "DenseReluDense.wi_0": "mlp/layer/gate",
  "DenseReluDense.wi": Layout("mlp/layer/wi", map_wi),
  "DenseReluDense.wo": "mlp/layer/wo",
}


def stack_tensors(mlp: dict) -> dict:
  """Return the table of all tensor names, given the table of one feed-forward layer."""
  position_table = "block.0.layer.0.SelfAttention.relative_attention_bias"
  encoder = SELF_ATTENTION | prefix_table("layer.1.", "", mlp)
  decoder = SELF_ATTENTION | CROSS_ATTENTION | prefix_table("layer.2.", "", mlp)
  return {
    "shared": "embed",
    "lm_head": "head",
    "encoder.final_layer_norm": "encoder/final_norm",
    f"encoder.{position_table}": "encoder/position",
    **prefix_table("encoder.block.{layer}.", "encoder/blocks/", encoder),
    "decoder.final_layer_norm": "decoder/final_norm",
    f"decoder.{position_table}": "decoder/position",
    **prefix_table("decoder.block.{layer}.", "decoder/blocks/", decoder),
  }


TENSOR_OPTIONS = dict(
  tied=dict.fromkeys(
    ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"),
    "shared.weight",
  ),
  # Older files have this table, and Transformers does not use it.
  ignored_suffixes=("EncDecAttention.relative_attention_bias.weight",),
)
_POSITION = {"name": "relative_bias", "shared": True}
_DESIGN = dataclasses.replace(t5.V1_0, position=_POSITION)
_UMT5_DESIGN = dataclasses.replace(t5.V1_0, position=_POSITION | {"shared": False})
_TENSORS = dict(tensors=stack_tensors(MLP), **TENSOR_OPTIONS)

TYPES = (
  ModelType("t5", "T5ForConditionalGeneration", t5.Model, _DESIGN, T5_ENTRIES, **_TENSORS),
  ModelType("mt5", "MT5ForConditionalGeneration", t5.Model, _DESIGN, ENTRIES, **_TENSORS),
  ModelType("umt5", "UMT5ForConditionalGeneration", t5.Model, _UMT5_DESIGN, ENTRIES, **_TENSORS),
)
