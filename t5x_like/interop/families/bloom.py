"""BLOOM."""

from typing import Any

from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import Custom, Field, Ignored, ModelType, Required
from t5x_like.interop.decoders import SpecialTokens
from t5x_like.interop.tensor_layouts import map_grouped_qkv
from t5x_like.interop.tensor_mapping import Layout, prefix_table
from t5x_like.models import bloom


def _require_inner_width(fields: Fields) -> dict[str, Any]:
  """Refuse another width of the MLP than `transformers`' width, which is fixed."""
  width = fields.values.get("n_embed") or fields.values.get("hidden_size")
  fields.require("n_inner", None, 4 * width)
  return {}


ENTRIES = (
  Field("vocab_size", "vocab_size"),
  Field("hidden_size", "dims.embed", alias="n_embed"),
  Field("n_layer", "dims.layers", default=2, alias="num_hidden_layers"),
  Field("n_head", "dims.heads", default=8, alias="num_attention_heads"),
  Field("layer_norm_epsilon", "design.norm_epsilon", default=1e-5),
  Field("tie_word_embeddings", "design.tied", default=True),
  SpecialTokens(start=1, eos=2),
  Custom(_require_inner_width),
  Required("apply_residual_connection_post_layernorm", False),
  Ignored("hidden_dropout", "attention_dropout", "slow_but_exact", "attention_softmax_in_fp32"),
  Ignored("seq_length", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi"),
  Ignored("skip_bias_add", "skip_bias_add_qkv"),
)
LAYER = {
  "input_layernorm": "self_attention/in_norm",
  "post_attention_layernorm": "mlp/in_norm",
  "self_attention.query_key_value": Layout("self_attention/layer", map_grouped_qkv),
  "self_attention.dense": "self_attention/layer/out",
  "mlp.dense_h_to_4h": "mlp/layer/wi",
  "mlp.dense_4h_to_h": "mlp/layer/wo",
}


def _canonical_name(name: str) -> str:
  """Add the prefix that the oldest files lack."""
  return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


TYPES = (
  ModelType(
    "bloom",
    "BloomForCausalLM",
    bloom.Model,
    bloom.DESIGN,
    ENTRIES,
    tensors={
      "transformer.word_embeddings": "embed",
      "transformer.word_embeddings_layernorm": "inputs/norm",
      "transformer.ln_f": "decoder/final_norm",
      "lm_head": "head",
      **prefix_table("transformer.h.{layer}.", "decoder/blocks/", LAYER),
    },
    tied={"lm_head.weight": "transformer.word_embeddings.weight"},
    canonical_name=_canonical_name,
  ),
)
