"""OLMo 2 and 3: Llama's tensors, with norms after the sublayers."""

from t5x_like.interop.config_table import Field, ModelType
from t5x_like.interop.decoders import LayersByType, Rope, RopeByType, SpecialTokens
from t5x_like.interop.families import llama
from t5x_like.models import olmo

COMMON = (
  *llama.SIZES,
  llama.KV_HEADS,
  Field("head_dim", "dims.head_dim", default=None, written=False),
  llama.ACTIVATION,
  Field("rms_norm_eps", "design.norm_epsilon", default=1e-5),
  llama.ATTENTION_BIAS,
  llama.UNTIED,
  SpecialTokens(pad=1, start=olmo.TOKENS.start, eos=50_279),
)
LAYER = {
  **llama.ATTENTION,
  **llama.GATED_MLP,
  "post_attention_layernorm": "self_attention/res_norm",
  "post_feedforward_layernorm": "mlp/res_norm",
}
TENSORS = llama.TENSORS | {"tensors": llama.decoder_tensors(LAYER)}

TYPES = (
  ModelType(
    "olmo2",
    "Olmo2ForCausalLM",
    olmo.Model,
    olmo.OLMO2,
    (*COMMON, Rope()),
    **TENSORS,
  ),
  ModelType(
    "olmo3",
    "Olmo3ForCausalLM",
    olmo.Model,
    olmo.OLMO3,
    (*COMMON, LayersByType(window=4096, full_every=4, rope=RopeByType(local=5e5, full=5e5))),
    **TENSORS,
  ),
)
