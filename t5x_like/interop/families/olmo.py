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


def build(fields: Fields, names: set[str]):
  windows = (None,)
  position = None
  if fields.values["model_type"] == "olmo3":
    local = decoders.local_layers(fields, lambda layer: (layer + 1) % 4 != 0)
    window = decoders.optional(fields, "sliding_window", 4096)
    windows = tuple(window if here else None for here in local)
    position = decoders.by_kind(local, *decoders.ropes(fields, local=5e5, full=5e5))
  design = dataclasses.replace(
    olmo.OLMO2,
    norm_epsilon=fields.take("rms_norm_eps", 1e-5),
    activation=fields.choose("hidden_act", decoders.GATED, "silu"),
    biases=("qkv", "out") if fields.take("attention_bias", False) else (),
    position=position or decoders.rope(fields),
    windows=windows,
    tied=fields.take("tie_word_embeddings", False),
  )
  variant = llama.variant_of(fields, design, kv_heads=None)
  tokens = decoders.special_ids(fields, pad=1, start=olmo.TOKENS.start, eos=50_279)
  return olmo.Model, {"variant": dataclasses.replace(variant, tokens=tokens)}


def config(model, model_type: str | None) -> dict:
  design = model.variant.design
  dims = model.variant.dims
  decoders.refuse_others(
    model,
    heads=False,
    mlp=False,
    norm="rmsnorm",
    norm_position="output",
    biases=[(), ("qkv", "out")],
    qk_norm=["all_heads"],
    activation=list(decoders.GATED.values()),
    tied=[True, False],
    **decoders.one_window(design),
  )
  third = model_type == "olmo3" or design.windows != (None,) or isinstance(design.position, tuple)
  sizes = llama.sizes_config(model, decoders.ropes_config(model) if third else None)
  del sizes["head_dim"]
  if third:
    sizes["sliding_window"] = decoders.width_of(design, 4096)
    sizes["layer_types"] = decoders.layer_types(design.windows, dims.layers)
  name, model_type = ("Olmo3", "olmo3") if third else ("Olmo2", "olmo2")
  return {
    "architectures": [f"{name}ForCausalLM"],
    "model_type": model_type,
    **sizes,
    "attention_bias": bool(design.biases),
  }


def tensors(m: TensorMapping) -> None:
  llama.map_decoder(m, _feed_forward)


def _feed_forward(m: TensorMapping, theirs: str, ours: str, at: int) -> None:
  m.norm(f"{theirs}.post_attention_layernorm", f"{ours.format('self_attention')}/res_norm", at)
  m.norm(f"{theirs}.post_feedforward_layernorm", f"{ours.format('mlp')}/res_norm", at)
  llama.gated(m, f"{theirs}.mlp", f"{ours.format('mlp')}/layer", at)
