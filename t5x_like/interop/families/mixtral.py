"""Mixtral: Llama's layout, with experts."""

from t5x_like.interop.config_table import Field, ModelType
from t5x_like.interop.decoders import HeadDim, Rope, RoutedExperts, SpecialTokens, Window
from t5x_like.interop.families import llama
from t5x_like.models import mixtral

ENTRIES = (
  *llama.SIZES,
  Field("num_key_value_heads", "dims.kv_heads", default=8, nullable=True),
  HeadDim(),
  llama.ACTIVATION,
  Field("rms_norm_eps", "design.norm_epsilon", default=1e-5),
  Rope(theta=1e6),
  Window(default=None),
  RoutedExperts(experts=8, top_k=2),
  Field("router_aux_loss_coef", "design.experts.balance_loss", default=0.001),
  Field("router_jitter_noise", "design.experts.jitter", default=0.0),
  llama.UNTIED,
  SpecialTokens(start=1, eos=2),
)
LAYER = {
  **llama.ATTENTION,
  "post_attention_layernorm": "moe/in_norm",
  "block_sparse_moe.gate": "moe/layer/router",
  "block_sparse_moe.experts.{expert}.w1": "moe/layer/gate",
  "block_sparse_moe.experts.{expert}.w2": "moe/layer/wo",
  "block_sparse_moe.experts.{expert}.w3": "moe/layer/wi",
}

TYPES = (
  ModelType(
    "mixtral",
    "MixtralForCausalLM",
    mixtral.Model,
    mixtral.DESIGN,
    ENTRIES,
    **llama.TENSORS | {"tensors": llama.decoder_tensors(LAYER)},
  ),
)
