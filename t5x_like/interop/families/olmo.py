"""OLMo 2 and 3: Llama's tensors, with norms after the sublayers."""

import dataclasses

from t5x_like.interop import decoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.families import llama
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import olmo

MODEL_TYPES = ("olmo2", "olmo3")
MODELS = (olmo.Model,)
BODY_PREFIX = "model."


def read_config(fields: Fields, tensor_names: set[str]):
  windows = (None,)
  if fields.values["model_type"] == "olmo3":
    is_local = decoders.read_local_layers(fields, lambda layer: (layer + 1) % 4 != 0)
    window = decoders.take_nullable(fields, "sliding_window", 4096)
    windows = decoders.arrange_windows(is_local, window)
    local_rope, full_rope = decoders.read_local_and_full_rope(fields, local=5e5, full=5e5)
    position = decoders.arrange_by_kind(is_local, local_rope, full_rope)
  else:
    position = decoders.read_rope(fields)
  design = dataclasses.replace(
    olmo.OLMO2,
    norm_epsilon=fields.take("rms_norm_eps", 1e-5),
    activation=fields.choose("hidden_act", decoders.GATED_ACTIVATIONS, "silu"),
    biases=("qkv", "out") if fields.take("attention_bias", False) else (),
    position=position,
    windows=windows,
    tied=fields.take("tie_word_embeddings", False),
  )
  variant = llama.read_variant(fields, design, kv_heads=None)
  tokens = decoders.read_special_tokens(fields, pad=1, start=olmo.TOKENS.start, eos=50_279)
  return olmo.Model, {"variant": dataclasses.replace(variant, tokens=tokens)}


def write_config(model, model_type: str | None) -> dict:
  design = model.variant.design
  dims = model.variant.dims
  decoders.require_plain_decoder(
    model,
    heads=False,
    mlp=False,
    norm="rmsnorm",
    norm_position="output",
    biases=[(), ("qkv", "out")],
    qk_norm=["all_heads"],
    activation=list(decoders.GATED_ACTIVATIONS.values()),
    tied=[True, False],
    **decoders.allow_one_window(design),
  )
  has_windows = design.windows != (None,)
  is_olmo3 = model_type == "olmo3" or has_windows or isinstance(design.position, tuple)
  rope = decoders.write_rope_by_kind(model) if is_olmo3 else None
  sizes = llama.write_sizes(model, rope)
  del sizes["head_dim"]
  if is_olmo3:
    sizes["sliding_window"] = decoders.window_width(design, 4096)
    sizes["layer_types"] = decoders.write_layer_types(design.windows, dims.layers)
  return {
    "architectures": ["Olmo3ForCausalLM" if is_olmo3 else "Olmo2ForCausalLM"],
    "model_type": "olmo3" if is_olmo3 else "olmo2",
    **sizes,
    "attention_bias": bool(design.biases),
  }


def map_tensors(mapping: TensorMapping) -> None:
  llama.map_decoder(mapping, _map_feed_forward)


def _map_feed_forward(
  mapping: TensorMapping, hf_layer: str, path_template: str, index: int
) -> None:
  attention = path_template.format("self_attention")
  mlp = path_template.format("mlp")
  mapping.norm(f"{hf_layer}.post_attention_layernorm", f"{attention}/res_norm", index)
  mapping.norm(f"{hf_layer}.post_feedforward_layernorm", f"{mlp}/res_norm", index)
  llama.map_gated_mlp(mapping, f"{hf_layer}.mlp", f"{mlp}/layer", index)
