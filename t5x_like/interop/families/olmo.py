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
  position = None
  if fields.values["model_type"] == "olmo3":
    local = decoders.read_local_layers(fields, lambda layer: (layer + 1) % 4 != 0)
    window = decoders.take_nullable(fields, "sliding_window", 4096)
    windows = tuple(window if here else None for here in local)
    position = decoders.arrange_by_kind(
      local, *decoders.read_local_and_full_rope(fields, local=5e5, full=5e5)
    )
  design = dataclasses.replace(
    olmo.OLMO2,
    norm_epsilon=fields.take("rms_norm_eps", 1e-5),
    activation=fields.choose("hidden_act", decoders.GATED_ACTIVATIONS, "silu"),
    biases=("qkv", "out") if fields.take("attention_bias", False) else (),
    position=position or decoders.read_rope(fields),
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
  third = model_type == "olmo3" or design.windows != (None,) or isinstance(design.position, tuple)
  sizes = llama.write_sizes(model, decoders.write_rope_by_kind(model) if third else None)
  del sizes["head_dim"]
  if third:
    sizes["sliding_window"] = decoders.window_width(design, 4096)
    sizes["layer_types"] = decoders.write_layer_types(design.windows, dims.layers)
  name, model_type = ("Olmo3", "olmo3") if third else ("Olmo2", "olmo2")
  return {
    "architectures": [f"{name}ForCausalLM"],
    "model_type": model_type,
    **sizes,
    "attention_bias": bool(design.biases),
  }


def map_tensors(mapping: TensorMapping) -> None:
  llama.map_decoder(mapping, _feed_forward)


def _feed_forward(mapping: TensorMapping, hf_name: str, path: str, index: int) -> None:
  mapping.norm(
    f"{hf_name}.post_attention_layernorm", f"{path.format('self_attention')}/res_norm", index
  )
  mapping.norm(f"{hf_name}.post_feedforward_layernorm", f"{path.format('mlp')}/res_norm", index)
  llama.map_gated_mlp(mapping, f"{hf_name}.mlp", f"{path.format('mlp')}/layer", index)
