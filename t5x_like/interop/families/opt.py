"""OPT."""

from t5x_like.interop.config_table import Choice, Field, Ignored, ModelType, Required
from t5x_like.interop.decoders import PLAIN_ACTIVATIONS, SpecialTokens
from t5x_like.interop.tensor_mapping import prefix_table
from t5x_like.models import opt

ENTRIES = (
  Field("vocab_size", "vocab_size", default=50_272),
  Field("hidden_size", "dims.embed", default=768),
  Field("word_embed_proj_dim", "embed", default=None),
  Field("num_hidden_layers", "dims.layers", default=12),
  Field("num_attention_heads", "dims.heads", default=12),
  Field("ffn_dim", "dims.mlp", default=3072),
  Field("max_position_embeddings", "design.position.length", default=2048),
  Choice(
    "do_layer_norm_before", "design.norm_position", {True: "pre", False: "post"}, default=True
  ),
  Choice("activation_function", "design.activation", PLAIN_ACTIVATIONS, default="relu"),
  SpecialTokens(pad=1, start=2, eos=2),
  Required("enable_bias", True),
  Required("layer_norm_elementwise_affine", True),
  Required("_remove_final_layer_norm", False),
  Required("tie_word_embeddings", True),
  Ignored("dropout", "attention_dropout", "activation_dropout", "layerdrop"),
)
LAYER = {
  "self_attn_layer_norm": ("self_attention/in_norm", "self_attention/out_norm"),
  "self_attn.q_proj": "self_attention/layer/query",
  "self_attn.k_proj": "self_attention/layer/key",
  "self_attn.v_proj": "self_attention/layer/value",
  "self_attn.out_proj": "self_attention/layer/out",
  "final_layer_norm": ("mlp/in_norm", "mlp/out_norm"),
  "fc1": "mlp/layer/wi",
  "fc2": "mlp/layer/wo",
}


def _canonical_name(name: str) -> str:
  """Add the prefix that older files lack."""
  return f"model.{name}" if name.startswith("decoder.") else name


TYPES = (
  ModelType(
    "opt",
    "OPTForCausalLM",
    opt.Model,
    opt.DESIGN,
    ENTRIES,
    tensors={
      "model.decoder.embed_tokens": "embed",
      # The second path is for models that project their embeddings, such as 350M.
      "model.decoder.embed_positions": ("inputs/position", "inputs/inner/position"),
      "model.decoder.project_in": "inputs/project",
      "model.decoder.project_out": "head/project",
      "model.decoder.final_layer_norm": "decoder/final_norm",
      **prefix_table("model.decoder.layers.{layer}.", "decoder/blocks/", LAYER),
    },
    tied={"lm_head.weight": "model.decoder.embed_tokens.weight"},
    canonical_name=_canonical_name,
  ),
)
