"""Llama and Mistral, and the config entries and tensor names that related families share."""

from typing import Any

from t5x_like.architectures.design import Variant
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import Choice, Custom, Field, Ignored, ModelType
from t5x_like.interop.decoders import GATED_ACTIVATIONS, HeadDim, Rope, SpecialTokens, Window
from t5x_like.interop.tensor_mapping import prefix_table
from t5x_like.models import llama

# Entries of `config.json`; see `interop/config_table.py`.
SIZES_BUT_MLP = (
  Field("vocab_size", "vocab_size"),
  Field("hidden_size", "dims.embed"),
  Field("num_hidden_layers", "dims.layers"),
  Field("num_attention_heads", "dims.heads"),
  Ignored("max_position_embeddings", "attention_dropout"),
)
SIZES = (*SIZES_BUT_MLP, Field("intermediate_size", "dims.mlp"))
KV_HEADS = Field("num_key_value_heads", "dims.kv_heads", default=None, nullable=True)
ACTIVATION = Choice("hidden_act", "design.activation", GATED_ACTIVATIONS, default="silu")
ATTENTION_BIAS = Choice(
  "attention_bias", "design.biases", {True: ("qkv", "out"), False: ()}, default=False
)
# Hugging Face ties embeddings where the field is absent; these model types do not.
UNTIED = Field("tie_word_embeddings", "design.tied", default=False)

COMMON = (
  *SIZES,
  HeadDim(),
  ACTIVATION,
  Field("rms_norm_eps", "design.norm_epsilon", default=1e-6),
  Rope(),
  UNTIED,
  SpecialTokens(start=llama.TOKENS.start, eos=llama.TOKENS.eos),
)


def _read_biases(fields: Fields) -> dict[str, Any]:
  attention = ("qkv", "out") if fields.take("attention_bias", False) else ()
  mlp = ("mlp",) if fields.take("mlp_bias", False) else ()
  return {"design.biases": attention + mlp}


def _write_biases(variant: Variant) -> dict[str, Any]:
  biases = variant.design.biases
  return {"attention_bias": "qkv" in biases, "mlp_bias": "mlp" in biases}


# Hugging Face's name of a module: our path, or the paths it may have.
EMBEDDINGS = {"model.embed_tokens": "embed", "lm_head": "head"}
ATTENTION = {
  "input_layernorm": "self_attention/in_norm",
  "self_attn.q_proj": "self_attention/layer/query",
  "self_attn.k_proj": "self_attention/layer/key",
  "self_attn.v_proj": "self_attention/layer/value",
  "self_attn.o_proj": "self_attention/layer/out",
  "self_attn.q_norm": ("self_attention/layer/q_norm/norm", "self_attention/layer/q_norm"),
  "self_attn.k_norm": ("self_attention/layer/k_norm/norm", "self_attention/layer/k_norm"),
}
GATED_MLP = {
  "mlp.gate_proj": "mlp/layer/gate",
  "mlp.up_proj": "mlp/layer/wi",
  "mlp.down_proj": "mlp/layer/wo",
}
MLP = {"post_attention_layernorm": "mlp/in_norm", **GATED_MLP}


def decoder_tensors(layer_tensors: dict) -> dict:
  """Return the table of a decoder's tensors under Llama's names, given the table of one layer."""
  layers = prefix_table("model.layers.{layer}.", "decoder/blocks/", layer_tensors)
  return {**EMBEDDINGS, "model.norm": "decoder/final_norm", **layers}


# Keyword arguments of `ModelType`.
TENSORS = dict(
  tensors=decoder_tensors(ATTENTION | MLP),
  tied={"lm_head.weight": "model.embed_tokens.weight"},
  ignored_suffixes=("rotary_emb.inv_freq",),
  body_prefix="model.",
)

TYPES = (
  ModelType(
    "llama",
    "LlamaForCausalLM",
    llama.Model,
    llama.LLAMA2,
    (*COMMON, KV_HEADS, Custom(_read_biases, _write_biases)),
    **TENSORS,
  ),
  ModelType(
    "mistral",
    "MistralForCausalLM",
    llama.Model,
    llama.MISTRAL,
    (
      *COMMON,
      Field("num_key_value_heads", "dims.kv_heads", default=8, nullable=True),
      Window(default=4096),
    ),
    **TENSORS,
  ),
)
