"""Command R and Aya 23: attention and MLP in parallel."""

from typing import Any

from t5x_like.architectures.design import Variant
from t5x_like.architectures.heads.lm import hidden_scale
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import Constant, Custom, Field, ModelType
from t5x_like.interop.decoders import Rope, SpecialTokens
from t5x_like.interop.families import llama
from t5x_like.models import command_r


def _read_logit_scale(fields: Fields) -> dict[str, Any]:
  return {"design.logits_scale": fields.take("logit_scale", 0.0625)}


def _write_logit_scale(variant: Variant) -> dict[str, Any]:
  return {"logit_scale": hidden_scale(variant.design, variant.dims.embed)}


ENTRIES = (
  *llama.SIZES,
  llama.KV_HEADS,
  Field("head_dim", "dims.head_dim", default=None, written=False),
  llama.ACTIVATION,
  Field("layer_norm_eps", "design.norm_epsilon", default=1e-5),
  llama.ATTENTION_BIAS,
  Rope(theta=5e5, interleaved=True),
  Field("use_qk_norm", "design.qk_norm", default=False),
  Custom(_read_logit_scale, _write_logit_scale),
  Constant("tie_word_embeddings", True),
  SpecialTokens(pad=0, start=5, eos=255_001),
)
LAYER = {
  "input_layernorm": "parallel/in_norm",
  "self_attn.q_proj": "parallel/layer/self_attention/query",
  "self_attn.k_proj": "parallel/layer/self_attention/key",
  "self_attn.v_proj": "parallel/layer/self_attention/value",
  "self_attn.o_proj": "parallel/layer/self_attention/out",
  "self_attn.q_norm": "parallel/layer/self_attention/q_norm",
  "self_attn.k_norm": "parallel/layer/self_attention/k_norm",
  "mlp.gate_proj": "parallel/layer/mlp/gate",
  "mlp.up_proj": "parallel/layer/mlp/wi",
  "mlp.down_proj": "parallel/layer/mlp/wo",
}

TYPES = (
  ModelType(
    "cohere",
    "CohereForCausalLM",
    command_r.Model,
    command_r.DESIGN,
    ENTRIES,
    **llama.TENSORS | {"tensors": llama.decoder_tensors(LAYER)},
  ),
)
