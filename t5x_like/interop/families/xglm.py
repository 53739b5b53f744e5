"""Configs and tensors of XGLM."""

from typing import Any

from t5x_like.architectures.design import Tokens, Variant
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import Choice, Custom, Field, Ignored, ModelType, Required
from t5x_like.interop.decoders import PLAIN_ACTIVATIONS, SpecialTokens
from t5x_like.interop.families import opt
from t5x_like.interop.tensor_mapping import prefix_table
from t5x_like.models import xglm

_TOKENS = SpecialTokens(pad=1, eos=2)


def _read_tokens(fields: Fields) -> dict[str, Any]:
  """Return the special ids; texts start with the end-of-text id, not with `bos_token_id`."""
  tokens = _TOKENS.read(fields)["tokens"]
  start = fields.values.get("decoder_start_token_id")
  if start is None:
    start = 2
  return {"tokens": Tokens(tokens.pad, start, tokens.eos)}


def _write_tokens(variant: Variant) -> dict[str, Any]:
  start = variant.tokens.start
  return _TOKENS.write(variant) | {"bos_token_id": 0, "decoder_start_token_id": start}


TYPES = (
  ModelType(
    "xglm",
    "XGLMForCausalLM",
    xglm.Model,
    xglm.DESIGN,
    (
      Field("vocab_size", "vocab_size", default=256_008),
      Field("d_model", "dims.embed", default=1024),
      Field("num_layers", "dims.layers", default=24),
      Field("attention_heads", "dims.heads", default=16),
      Field("ffn_dim", "dims.mlp", default=4096),
      Choice("activation_function", "design.activation", PLAIN_ACTIVATIONS, default="gelu"),
      Field("scale_embedding", "design.embed_scale", default=True),
      Custom(_read_tokens, _write_tokens),
      Required("tie_word_embeddings", True),
      Ignored("max_position_embeddings", "dropout", "attention_dropout", "activation_dropout"),
      Ignored("layerdrop"),
    ),
    tensors={
      "model.embed_tokens": "embed",
      "model.layer_norm": "decoder/final_norm",
      **prefix_table("model.layers.{layer}.", "decoder/blocks/", opt.LAYER),
    },
    tied={"lm_head.weight": "model.embed_tokens.weight"},
    ignored_suffixes=("embed_positions.weights",),  # sines and cosines
    body_prefix="model.",
  ),
)
