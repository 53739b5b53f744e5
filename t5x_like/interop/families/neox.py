"""GPT-NeoX and Pythia."""

from t5x_like.interop.config_table import Choice, Field, Ignored, ModelType
from t5x_like.interop.decoders import PLAIN_ACTIVATIONS, Rope, SpecialTokens
from t5x_like.interop.families import llama
from t5x_like.interop.tensor_layouts import map_grouped_qkv
from t5x_like.interop.tensor_mapping import Layout, prefix_table
from t5x_like.models import neox

ENTRIES = (
  *llama.SIZES,
  Choice("hidden_act", "design.activation", PLAIN_ACTIVATIONS, default="gelu"),
  Field("layer_norm_eps", "design.norm_epsilon", default=1e-5),
  Choice(
    "use_parallel_residual", "design.parallel", {True: "two_norms", False: "no"}, default=True
  ),
  Choice(
    "attention_bias",
    "design.biases",
    {True: ("qkv", "out", "mlp"), False: ("mlp",)},
    default=True,
  ),
  Rope(fraction=0.25, names=("rotary_emb_base", "rotary_pct")),
  llama.UNTIED,
  SpecialTokens(start=0, eos=2),
  Ignored("hidden_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob"),
)
# a layer is serial, or parallel with two norms
LAYER = {
  "input_layernorm": ("self_attention/in_norm", "parallel/layer/self_attention/norm"),
  "post_attention_layernorm": ("mlp/in_norm", "parallel/layer/mlp/norm"),
  "attention.query_key_value": Layout(
    ("self_attention/layer", "parallel/layer/self_attention/layer"), map_grouped_qkv
  ),
  "attention.dense": ("self_attention/layer/out", "parallel/layer/self_attention/layer/out"),
  "mlp.dense_h_to_4h": ("mlp/layer/wi", "parallel/layer/mlp/layer/wi"),
  "mlp.dense_4h_to_h": ("mlp/layer/wo", "parallel/layer/mlp/layer/wo"),
}

TYPES = (
  ModelType(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    neox.Model,
    neox.DESIGN,
    ENTRIES,
    tensors={
      "gpt_neox.embed_in": "embed",
      "gpt_neox.final_layer_norm": "decoder/final_norm",
      "embed_out": "head",
      **prefix_table("gpt_neox.layers.{layer}.", "decoder/blocks/", LAYER),
    },
    tied={"embed_out.weight": "gpt_neox.embed_in.weight"},
    ignored_suffixes=("attention.bias", "attention.masked_bias", "rotary_emb.inv_freq"),
    body_prefix="gpt_neox.",
  ),
)
