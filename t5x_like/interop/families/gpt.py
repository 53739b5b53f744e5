"""GPT and GPT-2."""

from t5x_like.interop.config_table import Choice, Field, Ignored, ModelType, Required
from t5x_like.interop.decoders import PLAIN_ACTIVATIONS, SpecialTokens
from t5x_like.interop.tensor_layouts import map_conv1d, map_conv1d_qkv
from t5x_like.interop.tensor_mapping import Layout, prefix_table
from t5x_like.models import gpt

# The "gelu" of GPT is the approximation by tanh.
GPT1_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}

COMMON = (
  Field("vocab_size", "vocab_size"),
  Field("n_embd", "dims.embed", default=768),
  Field("n_layer", "dims.layers", default=12),
  Field("n_head", "dims.heads", default=12),
  Field("layer_norm_epsilon", "design.norm_epsilon", default=1e-5),
  Field("tie_word_embeddings", "design.tied", default=True),
  Ignored("n_ctx", "resid_pdrop", "embd_pdrop", "attn_pdrop"),
)
GPT1 = (
  *COMMON,
  Field("n_positions", "design.position.length", default=512),
  Choice("afn", "design.activation", GPT1_ACTIVATIONS, default="gelu"),
  SpecialTokens(),
)
GPT2 = (
  *COMMON,
  Field("n_positions", "design.position.length", default=1024),
  Field("n_inner", "dims.mlp", default=None),
  Choice("activation_function", "design.activation", PLAIN_ACTIVATIONS, default="gelu_new"),
  SpecialTokens(start=50_256, eos=50_256),
  Required("scale_attn_weights", True),
  Required("scale_attn_by_inverse_layer_idx", False),
  Ignored("reorder_and_upcast_attn"),  # the same in float32
)
LAYER = {
  "ln_1": ("self_attention/in_norm", "self_attention/out_norm"),
  "ln_2": ("mlp/in_norm", "mlp/out_norm"),
  "attn.c_attn": Layout("self_attention/layer", map_conv1d_qkv),
  "attn.c_proj": Layout("self_attention/layer/out", map_conv1d),
  "mlp.c_fc": Layout("mlp/layer/wi", map_conv1d),
  "mlp.c_proj": Layout("mlp/layer/wo", map_conv1d),
}


def _canonical_name(name: str) -> str:
  """Add the prefix that files of the first models lack."""
  return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


def _tensors(table: str, positions: str) -> dict:
  """Return the tensors of a type, from its names of the token and position tables."""
  return dict(
    tensors={
      f"transformer.{table}": "embed",
      f"transformer.{positions}": "inputs/position",
      "transformer.ln_f": "decoder/final_norm",
      "lm_head": "head",
      **prefix_table("transformer.h.{layer}.", "decoder/blocks/", LAYER),
    },
    tied={"lm_head.weight": f"transformer.{table}.weight"},
    ignored_suffixes=("attn.bias", "attn.masked_bias", "position_ids"),
    canonical_name=_canonical_name,
  )


TYPES = (
  ModelType(
    "openai-gpt",
    "OpenAIGPTLMHeadModel",
    gpt.Model,
    gpt.GPT1,
    GPT1,
    **_tensors("tokens_embed", "positions_embed"),
  ),
  ModelType(
    "gpt2",
    "GPT2LMHeadModel",
    gpt.Model,
    gpt.GPT2,
    GPT2,
    **_tensors("wte", "wpe"),
  ),
)
